"""The pallets of the chain: storage items, calls, events, errors and constants. Declarations only.

Indices are those of the real runtime, because clients translate errors and decode events by them. Declared
generously: a read of an undeclared item makes some clients hang. An item "Hasher(Key) -> Value = default" reads as
its default, or as none if the value is an Option, where nothing is stored. "Name: text" gives an error its message.

Source: runtime metadata of spec 461; `SubtensorModule.SubnetEpochConsensus` is newer and declared as one byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pallet:
    """One module of a runtime.  Indices are explicit, because they are what transactions and events carry."""

    index: int
    crate: str
    storage: dict[str, str] = field(default_factory=dict)
    calls: dict[int, str] = field(default_factory=dict)
    events: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)


PALLETS = {
    "System": Pallet(
        0,
        "frame_system",
        storage={
            "Account": "Blake2_128Concat(AccountId32) -> AccountInfo",
            "Number": "-> u32",
            "Events": "-> Vec<EventRecord>",
        },
        calls={0: "remark(remark: Vec<u8>)", 7: "remark_with_event(remark: Vec<u8>)"},
        events={
            0: "ExtrinsicSuccess(dispatch_info: DispatchEventInfo)",
            1: "ExtrinsicFailed(dispatch_error: DispatchError, dispatch_info: DispatchEventInfo)",
            5: "Remarked(sender: AccountId32, hash: H256)",
        },
        errors={5: "CallFiltered: This chain does not serve the call."},
        constants={"BlockHashCount": "u32 = 2400", "SS58Prefix": "u16 = 42"},
    ),
    "Timestamp": Pallet(2, "pallet_timestamp", storage={"Now": "-> u64"}, calls={0: "set(now: Compact<u64>)"}),
    "Balances": Pallet(
        5,
        "pallet_balances",
        storage={"TotalIssuance": "-> TaoBalance"},
        calls={
            0: "transfer_allow_death(dest: MultiAddress, value: Compact<TaoBalance>)",
            3: "transfer_keep_alive(dest: MultiAddress, value: Compact<TaoBalance>)",
            4: "transfer_all(dest: MultiAddress, keep_alive: bool)",
        },
        events={2: "Transfer(from: AccountId32, to: AccountId32, amount: TaoBalance)"},
        errors={
            2: "InsufficientBalance: The account holds less than this costs.",
            3: "ExistentialDeposit: The receiving account would hold less than the existential deposit.",
            4: "Expendability: The transfer would end the paying account.",
        },
        constants={"ExistentialDeposit": "TaoBalance = 500"},
    ),
    "TransactionPayment": Pallet(
        6,
        "pallet_transaction_payment",
        events={0: "TransactionFeePaid(who: AccountId32, actual_fee: TaoBalance, tip: TaoBalance)"},
    ),
    "SubtensorModule": Pallet(
        7,
        "pallet_subtensor",
        storage={
            # Subnets and their hyperparameters
            "NetworksAdded": "Identity(NetUid) -> bool",
            "NetworkRegisteredAt": "Identity(NetUid) -> u64",
            "SubnetIdentitiesV3": "Blake2_128Concat(NetUid) -> Option<SubnetIdentityV3>",
            "SubnetOwner": "Identity(NetUid) -> AccountId32",
            "SubnetOwnerHotkey": "Identity(NetUid) -> AccountId32",
            "TokenSymbol": "Identity(NetUid) -> Vec<u8>",
            "NetworkRegistrationAllowed": "Identity(NetUid) -> bool = 1",
            "Burn": "Identity(NetUid) -> TaoBalance = 100000000",
            "CollateralLockShare": "Identity(NetUid) -> u16",
            "MaxAllowedUids": "Identity(NetUid) -> u16 = 256",
            "MaxAllowedValidators": "Identity(NetUid) -> u16 = 128",
            "ImmunityPeriod": "Identity(NetUid) -> u16 = 4096",
            "ServingRateLimit": "Identity(NetUid) -> u64 = 50",
            "WeightsSetRateLimit": "Identity(NetUid) -> u64 = 100",
            "WeightsVersionKey": "Identity(NetUid) -> u64",
            "MinAllowedWeights": "Identity(NetUid) -> u16 = 1024",
            "MaxWeightsLimit": "Identity(NetUid) -> u16 = 65535",
            "CommitRevealWeightsEnabled": "Identity(NetUid) -> bool = 1",
            "RevealPeriodEpochs": "Twox64Concat(NetUid) -> u64 = 1",
            "Kappa": "Identity(NetUid) -> u16 = 32767",
            "BondsMovingAverage": "Identity(NetUid) -> u64 = 900000",
            "ActivityCutoff": "Identity(NetUid) -> u16 = 5000",
            "MinBurn": "Identity(NetUid) -> TaoBalance = 500000",
            "MaxBurn": "Identity(NetUid) -> TaoBalance = 100000000000",
            "BurnHalfLife": "Identity(NetUid) -> u16 = 360",
            "BurnIncreaseMult": "Identity(NetUid) -> FixedU128 = 23242897532874035200",
            "SubnetOwnerCut": "-> u16 = 11796",
            "StakeThreshold": "-> u64",
            "SubnetEpochConsensus": "Identity(NetUid) -> u8",
            # Epochs
            "Tempo": "Identity(NetUid) -> u16 = 10",
            "LastEpochBlock": "Identity(NetUid) -> u64",
            "BlocksSinceLastStep": "Identity(NetUid) -> u64",
            "PendingEpochAt": "Identity(NetUid) -> u64",
            "SubnetEpochIndex": "Identity(NetUid) -> u64",
            # Emission and stake
            "PendingServerEmission": "Identity(NetUid) -> AlphaBalance",
            "PendingValidatorEmission": "Identity(NetUid) -> AlphaBalance",
            "PendingOwnerCut": "Identity(NetUid) -> AlphaBalance",
            "SubnetAlphaOut": "Identity(NetUid) -> AlphaBalance",
            "SubnetTAO": "Identity(NetUid) -> TaoBalance",
            "SubnetMechanism": "Identity(NetUid) -> u16",
            "SubtokenEnabled": "Identity(NetUid) -> bool",
            "Alpha": "Blake2_128Concat(AccountId32), Blake2_128Concat(AccountId32), Identity(NetUid) -> FixedU128",
            "TotalHotkeyShares": "Blake2_128Concat(AccountId32), Identity(NetUid) -> FixedU128",
            "StakingHotkeys": "Blake2_128Concat(AccountId32) -> Vec<AccountId32>",
            "OwnedHotkeys": "Blake2_128Concat(AccountId32) -> Vec<AccountId32>",
            "Lock": "Blake2_128Concat(AccountId32), Identity(NetUid), Blake2_128Concat(AccountId32) -> Option<LockState>",
            "IdentitiesV2": "Blake2_128Concat(AccountId32) -> Option<ChainIdentityV2>",
            "TotalHotkeyAlpha": "Blake2_128Concat(AccountId32), Identity(NetUid) -> AlphaBalance",
            # Neurons
            "SubnetworkN": "Identity(NetUid) -> u16",
            "Keys": "Identity(NetUid), Identity(u16) -> AccountId32",
            "Uids": "Identity(NetUid), Blake2_128Concat(AccountId32) -> Option<u16>",
            "Owner": "Blake2_128Concat(AccountId32) -> AccountId32",
            "IsNetworkMember": "Blake2_128Concat(AccountId32), Identity(NetUid) -> bool",
            "BlockAtRegistration": "Identity(NetUid), Identity(u16) -> u64",
            "Axons": "Identity(NetUid), Blake2_128Concat(AccountId32) -> Option<AxonInfo>",
            "Weights": "Identity(NetUidStorageIndex), Identity(u16) -> Vec<(u16, u16)>",
            "Bonds": "Identity(NetUidStorageIndex), Identity(u16) -> Vec<(u16, u16)>",
            "TimelockedWeightCommits": "Twox64Concat(NetUidStorageIndex), Twox64Concat(u64) -> Vec<(AccountId32, u64, BoundedVec<u8>, u64)>",
            # One entry per neuron
            "LastUpdate": "Identity(NetUidStorageIndex) -> Vec<u64>",
            "Active": "Identity(NetUid) -> Vec<bool>",
            "ValidatorPermit": "Identity(NetUid) -> Vec<bool>",
            "ValidatorTrust": "Identity(NetUid) -> Vec<PerU16>",
            "Consensus": "Identity(NetUid) -> Vec<PerU16>",
            "Incentive": "Identity(NetUidStorageIndex) -> Vec<PerU16>",
            "Dividends": "Identity(NetUid) -> Vec<PerU16>",
            "Emission": "Identity(NetUid) -> Vec<AlphaBalance>",
        },
        calls={
            2: "add_stake(hotkey: AccountId32, netuid: NetUid, amount_staked: TaoBalance)",
            3: "remove_stake(hotkey: AccountId32, netuid: NetUid, amount_unstaked: AlphaBalance)",
            88: "add_stake_limit(hotkey: AccountId32, netuid: NetUid, amount_staked: TaoBalance,"
            "limit_price: TaoBalance, allow_partial: bool)",
            89: "remove_stake_limit(hotkey: AccountId32, netuid: NetUid, amount_unstaked: AlphaBalance,"
            "limit_price: TaoBalance, allow_partial: bool)",
            4: "serve_axon(netuid: NetUid, version: u32, ip: u128, port: u16, ip_type: u8, protocol: u8,"
            "placeholder1: u8, placeholder2: u8)",
            7: "burned_register(netuid: NetUid, hotkey: AccountId32)",
            134: "register_limit(netuid: NetUid, hotkey: AccountId32, limit_price: u64)",
            118: "commit_timelocked_mechanism_weights(netuid: NetUid, mecid: MechId, commit: BoundedVec<u8>,"
            "reveal_round: u64, commit_reveal_version: u16)",
            119: "set_mechanism_weights(netuid: NetUid, mecid: MechId, dests: Vec<u16>, weights: Vec<u16>,"
            "version_key: u64)",
        },
        events={
            0: "NetworkAdded(NetUid, u16)",
            2: "StakeAdded(AccountId32, AccountId32, TaoBalance, AlphaBalance, NetUid, u64)",
            3: "StakeRemoved(AccountId32, AccountId32, TaoBalance, AlphaBalance, NetUid, u64)",
            5: "WeightsSet(NetUidStorageIndex, u16)",
            7: "NeuronRegistered(NetUid, u16, AccountId32)",
            29: "AxonServed(NetUid, AccountId32)",
            108: "TimelockedWeightsCommitted(AccountId32, NetUidStorageIndex, H256, u64)",
            109: "TimelockedWeightsRevealed(NetUidStorageIndex, AccountId32)",
            111: "IncentiveAlphaEmittedToMiners(netuid: NetUidStorageIndex, emissions: Vec<AlphaBalance>)",
        },
        errors={
            1: "InvalidIpType: An address is of type 4 or 6.",
            2: "InvalidIpAddress: Others cannot reach this address.",
            3: "InvalidPort: Port 0 cannot be served.",
            4: "HotKeyNotRegisteredInSubNet: The hotkey has no neuron in this subnet.",
            5: "HotKeyAccountNotExists: Nobody registered this hotkey anywhere.",
            6: "HotKeyNotRegisteredInNetwork: The hotkey has no neuron in any subnet.",
            7: "NonAssociatedColdKey: The hotkey belongs to another coldkey.",
            9: "NotEnoughStakeToWithdraw: The coldkey has less stake on this hotkey.",
            10: "NotEnoughStakeToSetWeights: The hotkey has too little stake to set weights.",
            12: "NotEnoughBalanceToStake: The coldkey holds less than this costs.",
            15: "NeuronNoValidatorPermit: Only a neuron with a validator permit may set weights for others.",
            16: "WeightVecNotEqualSize: There must be one weight for each uid.",
            17: "DuplicateUids: A uid occurs twice.",
            18: "UidVecContainInvalidOne: No neuron has this uid.",
            19: "WeightVecLengthIsLow: The subnet wants weights for more neurons.",
            21: "HotKeyAlreadyRegisteredInSubNet: The hotkey already has a neuron in this subnet.",
            27: "MaxWeightExceeded: One weight takes a larger share than the subnet allows.",
            29: "SettingWeightsTooFast: The rate limit for setting weights has not passed.",
            30: "IncorrectWeightVersionKey: The subnet wants a newer weights version.",
            31: "ServingRateLimitExceeded: The rate limit for serving has not passed.",
            32: "UidsLengthExceedUidsInSubNet: There are more weights than neurons.",
            37: "SubNetRegistrationDisabled: The subnet does not take registrations.",
            48: "NoNeuronIdAvailable: All uids are taken by immune neurons.",
            53: "CommitRevealEnabled: The subnet takes weights only by commit and reveal.",
            54: "CommitRevealDisabled: The subnet takes weights only in the clear.",
            41: "NotSubnetOwner: Only the subnet's owner or the sudo key may do this.",
            42: "RegistrationNotPermittedOnRootSubnet: The root subnet takes no neurons this way.",
            47: "CanNotSetRootNetworkWeights: The root subnet takes no weights this way.",
            74: "MechanismDoesNotExist: The subnet has no such mechanism.",
            76: "SubnetNotExists: There is no such subnet.",
            81: "CommittingWeightsTooFast: The rate limit for committing weights has not passed.",
            82: "AmountTooLow: The amount is below the least stake, or would leave less than it.",
            83: "InsufficientLiquidity: The subnet holds less TAO than this is worth.",
            84: "SlippageTooHigh: The price is not within the limit.",
            136: "RegistrationPriceLimitExceeded: A neuron costs more than the limit.",
            94: "SubtokenDisabled: The subnet's stake cannot be bought or sold.",
        },
    ),
    "Sudo": Pallet(
        12,
        "pallet_sudo",
        storage={"Key": "-> Option<AccountId32>"},
        calls={0: "sudo(call: RuntimeCall)"},
        events={0: "Sudid(sudo_result: Result<(), DispatchError>)"},
        errors={0: "RequireSudo: Only the sudo key may do this."},
    ),
    "Commitments": Pallet(
        18,
        "pallet_commitments",
        storage={
            "CommitmentOf": "Identity(NetUid), Twox64Concat(AccountId32) -> Option<Registration>",
            "RevealedCommitments": "Identity(NetUid), Twox64Concat(AccountId32) -> Option<Vec<(Vec<u8>, u64)>>",
        },
        calls={0: "set_commitment(netuid: NetUid, info: CommitmentInfo)"},
        events={0: "Commitment(netuid: NetUid, who: AccountId32)"},
        errors={1: "AccountNotAllowedCommit: The hotkey has no neuron in this subnet."},
    ),
    "AdminUtils": Pallet(
        19,
        "pallet_admin_utils",
        calls={
            3: "sudo_set_serving_rate_limit(netuid: NetUid, serving_rate_limit: u64)",
            6: "sudo_set_weights_version_key(netuid: NetUid, weights_version_key: u64)",
            7: "sudo_set_weights_set_rate_limit(netuid: NetUid, weights_set_rate_limit: u64)",
            13: "sudo_set_immunity_period(netuid: NetUid, immunity_period: u16)",
            14: "sudo_set_min_allowed_weights(netuid: NetUid, min_allowed_weights: u16)",
            15: "sudo_set_max_allowed_uids(netuid: NetUid, max_allowed_uids: u16)",
            16: "sudo_set_kappa(netuid: NetUid, kappa: u16)",
            18: "sudo_set_activity_cutoff(netuid: NetUid, activity_cutoff: u16)",
            19: "sudo_set_network_registration_allowed(netuid: NetUid, registration_allowed: bool)",
            25: "sudo_set_max_allowed_validators(netuid: NetUid, max_allowed_validators: u16)",
            26: "sudo_set_bonds_moving_average(netuid: NetUid, bonds_moving_average: u64)",
            30: "sudo_set_tempo(netuid: NetUid, tempo: u16)",
            49: "sudo_set_commit_reveal_weights_enabled(netuid: NetUid, enabled: bool)",
            57: "sudo_set_commit_reveal_weights_interval(netuid: NetUid, interval: u64)",
        },
    ),
    "MevShield": Pallet(
        30,
        "pallet_shield",
        storage={
            "CurrentKey": "-> Option<BoundedVec<u8>>",
            "PendingKey": "-> Option<BoundedVec<u8>>",
            "NextKey": "-> Option<BoundedVec<u8>>",
            "PendingKeyExpiresAt": "-> Option<u32>",
            "NextKeyExpiresAt": "-> Option<u32>",
        },
        calls={1: "submit_encrypted(ciphertext: BoundedVec<u8>)"},
        events={0: "EncryptedSubmitted(id: H256, who: AccountId32)"},
    ),
}
