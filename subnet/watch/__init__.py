"""What people look at: metrics, status, doctor, dashboard."""
