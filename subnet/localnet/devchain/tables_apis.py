"""The runtime APIs that clients may call by `state_call`: "method(argument: Type) -> Result". Declarations only.

No method may return a bare `Vec<u8>`: clients take that for an older, doubly encoded format.

Source: runtime metadata of spec 461.
"""

from __future__ import annotations

APIS = {
    "Metadata": [
        "metadata() -> OpaqueMetadata",
        "metadata_at_version(version: u32) -> Option<OpaqueMetadata>",
        "metadata_versions() -> Vec<u32>",
    ],
    "AccountNonceApi": ["account_nonce(account: AccountId32) -> u32"],
    "TransactionPaymentApi": ["query_info(uxt: UncheckedExtrinsic, len: u32) -> RuntimeDispatchInfo"],
    "NeuronInfoRuntimeApi": [
        "get_neurons(netuid: NetUid) -> Vec<NeuronInfo>",
        "get_neurons_lite(netuid: NetUid) -> Vec<NeuronInfoLite>",
    ],
    "SubnetInfoRuntimeApi": [
        "get_metagraph(netuid: NetUid) -> Option<Metagraph>",
        "get_subnet_hyperparams_v3(netuid: NetUid) -> Option<Vec<HyperparamEntry>>",
        "get_next_epoch_start_block(netuid: NetUid) -> Option<u64>",
    ],
    "StakeInfoRuntimeApi": [
        "get_stake_info_for_coldkey(coldkey_account: AccountId32) -> Vec<StakeInfo>",
        "get_stake_info_for_coldkeys(coldkey_accounts: Vec<AccountId32>) -> Vec<(AccountId32, Vec<StakeInfo>)>",
        "get_stake_info_for_hotkey_coldkey_netuid(hotkey_account: AccountId32, coldkey_account: AccountId32,"
        "netuid: NetUid) -> Option<StakeInfo>",
        "get_stake_availability_for_coldkeys(coldkey_accounts: Vec<AccountId32>, netuids: Option<Vec<NetUid>>)"
        "-> BTreeMap<AccountId32, BTreeMap<NetUid, StakeAvailability>>",
    ],
    "SwapRuntimeApi": [
        "current_alpha_price(netuid: NetUid) -> u64",
        "current_alpha_price_all() -> Vec<SubnetPrice>",
        "sim_swap_tao_for_alpha(netuid: NetUid, tao: TaoBalance) -> SimSwapResult",
        "sim_swap_alpha_for_tao(netuid: NetUid, alpha: AlphaBalance) -> SimSwapResult",
    ],
    "BetaBasketRuntimeApi": ["get_root_basket_owed(coldkey: AccountId32) -> TaoBalance"],
    "SubnetRegistrationRuntimeApi": ["get_network_registration_cost() -> TaoBalance"],
}
