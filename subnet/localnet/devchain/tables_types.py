"""Types of the part of Bittensor's runtime that a subnet uses, and the layout of a signed transaction. Declarations
only.

A heading is a path with generic parameters and their defaults; a body is the fields of a struct, or the items of an
enum by index. Paths matter where clients look for them: AccountId32, MultiAddress, Era, Option, EventRecord (its
field names too).

Source: runtime metadata of spec 461, compared item by item in tests/contract/test_devchain_conformance.py.
"""

from __future__ import annotations

from subnet.localnet.devchain.registry import Body

EXTRINSIC_VERSION = 4

# The fields that a transaction carries besides its call, and what is signed without being sent.
EXTENSIONS = {
    "CheckNonZeroSender": ("", "()"),
    "CheckSpecVersion": ("", "u32"),
    "CheckTxVersion": ("", "u32"),
    "CheckGenesis": ("", "H256"),
    "CheckMortality": ("Era", "H256"),
    "CheckNonce": ("Compact<u32>", "()"),
    "CheckWeight": ("", "()"),
    "ChargeTransactionPayment": ("Compact<TaoBalance>", "()"),
    "SudoTransactionExtension": ("", "()"),
    "CheckShieldedTxValidity": ("", "()"),
    "SubtensorTransactionExtension": ("", "()"),
    "DrandPriority": ("", "()"),
    "CheckMetadataHash": ("mode: Mode", "Option<[u8; 32]>"),
}

NEURON = (
    "hotkey: AccountId32, coldkey: AccountId32, uid: Compact<u16>, netuid: Compact<NetUid>, active: bool,"
    "axon_info: AxonInfo, prometheus_info: PrometheusInfo, stake: Vec<(AccountId32, Compact<AlphaBalance>)>,"
    "rank: Compact<u16>, emission: Compact<AlphaBalance>, incentive: Compact<PerU16>, consensus: Compact<PerU16>,"
    "trust: Compact<PerU16>, validator_trust: Compact<PerU16>, dividends: Compact<PerU16>,"
    "last_update: Compact<u64>, validator_permit: bool,"
)

TYPES: dict[str, Body] = {
    # Generic
    "Option<T>": ["None", "Some(T)"],
    "Result<T, E>": ["Ok(T)", "Err(E)"],
    "BTreeMap<K, V>": "Vec<(K, V)>",
    "bounded_collections::bounded_vec::BoundedVec<T>": "Vec<T>",
    # Primitives of the network
    "sp_core::crypto::AccountId32": "[u8; 32]",
    "sp_core::OpaqueMetadata": "Vec<u8>",
    "primitive_types::H256": "[u8; 32]",
    "sp_arithmetic::per_things::PerU16": "u16",
    "substrate_fixed::FixedI64": "bits: i64",
    "substrate_fixed::FixedI128": "bits: i128",
    "substrate_fixed::FixedU128": "bits: u128",
    "subtensor_runtime_common::NetUid": "u16",
    "subtensor_runtime_common::NetUidStorageIndex": "u16",
    "subtensor_runtime_common::MechId": "u8",
    "subtensor_runtime_common::currency::TaoBalance": "u64",
    "subtensor_runtime_common::currency::AlphaBalance": "u64",
    # Transactions
    "sp_runtime::multiaddress::MultiAddress<AccountId = AccountId32, AccountIndex = ()>": [
        "Id(AccountId)",
        "Index(Compact<AccountIndex>)",
        "Raw(Vec<u8>)",
        "Address32([u8; 32])",
        "Address20([u8; 20])",
    ],
    "sp_runtime::MultiSignature": ["Ed25519([u8; 64])", "Sr25519([u8; 64])", "Ecdsa([u8; 65])"],
    "sp_runtime::generic::era::Era": ["Immortal", *(f"Mortal{i}(u8)" for i in range(1, 256))],
    "sp_runtime::generic::unchecked_extrinsic::UncheckedExtrinsic<Address = MultiAddress, Call = RuntimeCall,"
    f"Signature = MultiSignature, Extra = ({', '.join(EXTENSIONS)})>": "Vec<u8>",
    "frame_metadata_hash_extension::Mode": ["Disabled", "Enabled"],
    # System
    "frame_system::AccountInfo": "nonce: u32, consumers: u32, providers: u32, sufficients: u32, data: AccountData",
    "pallet_balances::types::AccountData": "free: TaoBalance, reserved: TaoBalance, frozen: TaoBalance, flags: ExtraFlags",
    "pallet_balances::types::ExtraFlags": "u128",
    "frame_system::EventRecord": "phase: Phase, event: RuntimeEvent, topics: Vec<H256>",
    "frame_system::Phase": ["ApplyExtrinsic(u32)", "Finalization", "Initialization"],
    "frame_system::DispatchEventInfo": "weight: Weight, class: DispatchClass, pays_fee: Pays",
    "frame_support::dispatch::DispatchClass": ["Normal", "Operational", "Mandatory"],
    "frame_support::dispatch::Pays": ["Yes", "No"],
    "sp_weights::weight_v2::Weight": "ref_time: Compact<u64>, proof_size: Compact<u64>",
    "pallet_transaction_payment::types::RuntimeDispatchInfo": "weight: Weight, class: DispatchClass, partial_fee: TaoBalance",
    "sp_runtime::DispatchError": [
        "Other",
        "CannotLookup",
        "BadOrigin",
        "Module(ModuleError)",
        "ConsumerRemaining",
        "NoProviders",
        "TooManyConsumers",
        "Token(TokenError)",
        "Arithmetic(ArithmeticError)",
        "Transactional(TransactionalError)",
        "Exhausted",
        "Corruption",
        "Unavailable",
        "RootNotAllowed",
    ],
    "sp_runtime::ModuleError": "index: u8, error: [u8; 4]",
    "sp_runtime::TokenError": [
        "FundsUnavailable",
        "OnlyProvider",
        "BelowMinimum",
        "CannotCreate",
        "UnknownAsset",
        "Frozen",
        "Unsupported",
        "CannotCreateHold",
        "NotExpendable",
        "Blocked",
    ],
    "sp_arithmetic::ArithmeticError": ["Underflow", "Overflow", "DivisionByZero"],
    "sp_runtime::TransactionalError": ["LimitReached", "NoLayer"],
    # Commitments
    "pallet_commitments::types::Registration": "deposit: TaoBalance, block: u32, info: CommitmentInfo",
    "pallet_commitments::types::CommitmentInfo": "fields: BoundedVec<Data>",
    "pallet_commitments::types::Data": {
        0: "None",
        **{size + 1: f"Raw{size}([u8; {size}])" for size in range(129)},
        130: "BlakeTwo256([u8; 32])",
        131: "Sha256([u8; 32])",
        132: "Keccak256([u8; 32])",
        133: "ShaThree256([u8; 32])",
        134: "TimelockEncrypted(encrypted: BoundedVec<u8>, reveal_round: u64)",
        135: "ResetBondsFlag",
        136: "BigRaw(BoundedVec<u8>)",
        137: "TimelockRevealFailed(encrypted: BoundedVec<u8>, reveal_round: u64)",
    },
    # Subnets and neurons
    "pallet_subtensor::RateLimitKey": ["SetSNOwnerHotkey(NetUid)", "OwnerHyperparamUpdate(NetUid, Hyperparameter)"],
    "pallet_subtensor::utils::rate_limiting::Hyperparameter": [
        "Unknown",
        "ServingRateLimit",
        "MaxDifficulty",
        "AdjustmentAlpha",
        "MaxWeightLimit",
        "ImmunityPeriod",
        "MinAllowedWeights",
        "Kappa",
        "Rho",
        "ActivityCutoff",
        "PowRegistrationAllowed",
        "MinBurn",
        "MaxBurn",
        "BondsMovingAverage",
        "BondsPenalty",
        "CommitRevealEnabled",
        "LiquidAlphaEnabled",
        "AlphaValues",
        "WeightCommitInterval",
        "TransferEnabled",
        "AlphaSigmoidSteepness",
        "Yuma3Enabled",
        "BondsResetEnabled",
        "ImmuneNeuronLimit",
        "RecycleOrBurn",
        "MaxAllowedUids",
        "BurnHalfLife",
        "BurnIncreaseMult",
        "SubnetEmissionEnabled",
        "MinChildkeyTake",
        "ActivityCutoffFactorMilli",
    ],
    "pallet_subtensor::pallet::AxonInfo": "block: u64, version: u32, ip: u128, port: u16, ip_type: u8, protocol: u8, placeholder1: u8, placeholder2: u8",
    "pallet_subtensor::pallet::PrometheusInfo": "block: u64, version: u32, ip: u128, port: u16, ip_type: u8",
    "pallet_subtensor::pallet::ChainIdentityV2": "name: Vec<u8>, url: Vec<u8>, github_repo: Vec<u8>, image: Vec<u8>, discord: Vec<u8>, description: Vec<u8>,"
    "additional: Vec<u8>",
    "pallet_subtensor::pallet::SubnetIdentityV3": "subnet_name: Vec<u8>, github_repo: Vec<u8>, subnet_contact: Vec<u8>, subnet_url: Vec<u8>, discord: Vec<u8>,"
    "description: Vec<u8>, logo_url: Vec<u8>, additional: Vec<u8>",
    "pallet_subtensor::rpc_info::neuron_info::NeuronInfo": NEURON
    + "weights: Vec<(Compact<u16>, Compact<u16>)>, bonds: Vec<(Compact<u16>, Compact<u16>)>,"
    "pruning_score: Compact<u16>",
    "pallet_subtensor::rpc_info::neuron_info::NeuronInfoLite": NEURON + "pruning_score: Compact<u16>",
    "pallet_subtensor::rpc_info::metagraph::Metagraph": "netuid: Compact<NetUid>, name: Vec<Compact<u8>>, symbol: Vec<Compact<u8>>,"
    "identity: Option<SubnetIdentityV3>, network_registered_at: Compact<u64>, owner_hotkey: AccountId32,"
    "owner_coldkey: AccountId32, block: Compact<u64>, tempo: Compact<u16>, last_step: Compact<u64>,"
    "blocks_since_last_step: Compact<u64>, subnet_emission: Compact<u64>, alpha_in: Compact<AlphaBalance>,"
    "alpha_out: Compact<AlphaBalance>, tao_in: Compact<TaoBalance>, alpha_out_emission: Compact<AlphaBalance>,"
    "alpha_in_emission: Compact<AlphaBalance>, tao_in_emission: Compact<TaoBalance>,"
    "pending_alpha_emission: Compact<AlphaBalance>, pending_root_emission: Compact<TaoBalance>,"
    "subnet_volume: Compact<u128>, moving_price: FixedI128, rho: Compact<u16>, kappa: Compact<u16>,"
    "min_allowed_weights: Compact<u16>, max_weights_limit: Compact<u16>, weights_version: Compact<u64>,"
    "weights_rate_limit: Compact<u64>, activity_cutoff: Compact<u64>, max_validators: Compact<u16>,"
    "num_uids: Compact<u16>, max_uids: Compact<u16>, burn: Compact<TaoBalance>, difficulty: Compact<u64>,"
    "registration_allowed: bool, pow_registration_allowed: bool, immunity_period: Compact<u16>,"
    "min_difficulty: Compact<u64>, max_difficulty: Compact<u64>, min_burn: Compact<TaoBalance>,"
    "max_burn: Compact<TaoBalance>, adjustment_alpha: Compact<u64>, adjustment_interval: Compact<u16>,"
    "target_regs_per_interval: Compact<u16>, max_regs_per_block: Compact<u16>, serving_rate_limit: Compact<u64>,"
    "commit_reveal_weights_enabled: bool, commit_reveal_period: Compact<u64>, liquid_alpha_enabled: bool,"
    "alpha_high: Compact<u16>, alpha_low: Compact<u16>, bonds_moving_avg: Compact<u64>,"
    "hotkeys: Vec<AccountId32>, coldkeys: Vec<AccountId32>, identities: Vec<Option<ChainIdentityV2>>,"
    "axons: Vec<AxonInfo>, active: Vec<bool>, validator_permit: Vec<bool>, pruning_score: Vec<Compact<u16>>,"
    "last_update: Vec<Compact<u64>>, emission: Vec<Compact<AlphaBalance>>, dividends: Vec<Compact<PerU16>>,"
    "incentives: Vec<Compact<PerU16>>, consensus: Vec<Compact<PerU16>>, trust: Vec<Compact<PerU16>>,"
    "rank: Vec<Compact<u16>>, block_at_registration: Vec<Compact<u64>>, alpha_stake: Vec<Compact<AlphaBalance>>,"
    "tao_stake: Vec<Compact<TaoBalance>>, total_stake: Vec<Compact<TaoBalance>>,"
    "tao_dividends_per_hotkey: Vec<(AccountId32, Compact<TaoBalance>)>,"
    "alpha_dividends_per_hotkey: Vec<(AccountId32, Compact<AlphaBalance>)>,"
    "collateral_locked: Vec<Compact<AlphaBalance>>, collateral_min: Vec<Compact<AlphaBalance>>,"
    "collateral_earned: Vec<Compact<AlphaBalance>>",
    "pallet_subtensor::rpc_info::stake_info::StakeInfo": "hotkey: AccountId32, coldkey: AccountId32, netuid: Compact<NetUid>, stake: Compact<AlphaBalance>,"
    "locked: Compact<u64>, emission: Compact<AlphaBalance>, tao_emission: Compact<TaoBalance>, drain: Compact<u64>,"
    "is_registered: bool",
    "pallet_subtensor::rpc_info::stake_info::StakeAvailability": "total: Compact<AlphaBalance>, locked: Compact<AlphaBalance>, available: Compact<AlphaBalance>",
    "pallet_subtensor::staking::lock::LockState": "locked_mass: AlphaBalance, conviction: FixedU128, last_update: u64",
    "pallet_subtensor_swap_runtime_api::SubnetPrice": "netuid: NetUid, price: u64",
    "pallet_subtensor_swap_runtime_api::SimSwapResult": "tao_amount: TaoBalance, alpha_amount: AlphaBalance, tao_fee: TaoBalance, alpha_fee: AlphaBalance,"
    "tao_slippage: TaoBalance, alpha_slippage: AlphaBalance",
    "pallet_subtensor::rpc_info::subnet_info::HyperparamEntry": "name: Vec<u8>, value: HyperparamValue",
    "pallet_subtensor::rpc_info::subnet_info::HyperparamValue": [
        "Bool(bool)",
        "U16(Compact<u16>)",
        "U32(Compact<u32>)",
        "U64(Compact<u64>)",
        "U128(Compact<u128>)",
        "TaoBalance(Compact<TaoBalance>)",
        "I32F32(FixedI64)",
        "U64F64(FixedU128)",
    ],
}
