//! The checks outside the table, in the order in which they are made.

macro_rules! checks {
    ($(#[doc = $doc:literal] $name:ident;)*) => {
        /// Checks outside the table, in their order.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum Check {
            $(#[doc = $doc] $name,)*
        }

        impl Check {
            /// Every check.
            pub const ALL: &'static [Check] = &[$(Check::$name),*];

            /// Returns the rule that it checks, as a short text: `transfer size not zero`.
            #[must_use]
            pub fn rule(self) -> &'static str {
                let doc = match self {
                    $(Check::$name => $doc,)*
                };
                doc.split_once(": ").map_or(doc, |(_, rule)| rule).trim_end_matches('.')
            }
        }
    };
}

checks! {
    /// 0x1b: completion record address 32-byte aligned.
    RecordAlignment;
    /// 0x1e: the completion record's traffic class usable.
    RecordClass;
    /// 0x1d: privilege from a shared queue only in privileged mode.
    Privilege;
    /// 0x10: OPCAP or OPCFG lists the operation.
    Operation;
    /// 0x10: no Batch, Drain or Update Window inside a batch.
    InsideBatch;
    /// 0x10: Translation Fetch only with the address translation service.
    FetchTranslation;
    /// 0x28: Update Window: the queue has PASIDs.
    UpdatePasid;
    /// 0x11: Fence only inside a batch.
    FenceOutside;
    /// 0x11: completion record request and class need a completion record address.
    RecordFlags;
    /// 0x11: user-mode interrupts allowed.
    UserInterrupt;
    /// 0x11: Block On Fault and cache control as queue and device allow.
    QueueFlags;
    /// 0x11: flags that need a capability.
    GatedFlags;
    /// 0x11: CRC: address 3's class only with Read Seed.
    SeedClass;
    /// 0x11: Drain: readback classes only with readback addresses.
    ReadbackClass;
    /// 0x11: Drain: a record or an interrupt must be requested.
    DrainNotification;
    /// 0x11: Update Window: drain suppressed only where the device can.
    SuppressDrain;
    /// 0x11: inter-domain copy and compare: at least one alternate address space.
    NoAlternate;
    /// 0x11: Cache Control 3 only in the combinations that exist and the device has.
    CacheControl3;
    /// 0x11: arrays and lists: alternate address spaces only where the device has them.
    DomainFlags;
    /// 0x12: completion address zero if not valid.
    UnusedRecordAddress;
    /// 0x12: interrupt handle zero if no interrupt is requested.
    UnusedHandle;
    /// 0x12: Fill: upper pattern zero with an 8-byte pattern.
    UnusedPattern;
    /// 0x12: CRC: upper half of the seed zero for a CRC of 32 bits.
    UnusedSeedHalf;
    /// 0x12: CRC: seed zero if it is read from memory.
    UnusedSeed;
    /// 0x12: CRC: seed address zero if it is not read.
    UnusedSeedAddress;
    /// 0x12: Drain: readback address 1 zero if not valid.
    UnusedReadback1;
    /// 0x12: Drain: readback address 2 zero if not valid.
    UnusedReadback2;
    /// 0x12: Translation Fetch: stride zero if not valid.
    UnusedStride;
    /// 0x12: inter-domain operations: handle 1 zero if not used.
    UnusedHandle1;
    /// 0x12: inter-domain operations: handle 2 zero if not used.
    UnusedHandle2;
    /// 0x12: Reduce: ID selector zero if not used.
    UnusedSelector;
    /// 0x19: the interrupt handle may be used.
    InterruptHandle;
    /// 0x1e: the addresses' traffic classes usable.
    AddressClass;
    /// 0x13: transfer size not zero.
    SizeZero;
    /// 0x13: transfer size within the queue's limit.
    SizeLimit;
    /// 0x13: delta operations: transfer size within 512 KiB.
    DeltaSize;
    /// 0x13: DIF: transfer size a multiple of the block size, with the 8-byte tuple where the source has one.
    DifSize;
    /// 0x14: scatter-gather list not empty.
    ListEmpty;
    /// 0x14: scatter-gather list within the queue's limit.
    ListLimit;
    /// 0x13: Gather Reduce: a buffer, and the result, within the device's limit.
    GatherBlock;
    /// 0x13: Gather Reduce: all buffers within the queue's limit.
    GatherTotal;
    /// 0x13: gather and scatter: transfer size that of all buffers.
    ListSize;
    /// 0x14: batch count at least 2, or 1 where allowed.
    CountLow;
    /// 0x14: batch count within the queue's limit.
    CountLimit;
    /// 0x15: Create Delta: record room at least 80 bytes.
    DeltaRoomLow;
    /// 0x15: Create Delta: record room within the queue's limit.
    DeltaRoomLimit;
    /// 0x15: Apply Delta: record at least one entry.
    DeltaRecordLow;
    /// 0x15: Apply Delta: record within the queue's limit.
    DeltaRecordLimit;
    /// 0x15: arrays and lists: the device has the input type.
    InputType;
    /// 0x15: lists: the device has the format.
    ListFormat;
    /// 0x15: arrays: the device has the output type.
    OutputType;
    /// 0x15: arrays: both types are integers, or both floating-point.
    TypeClass;
    /// 0x15: arrays: the device has the conversion.
    TypePair;
    /// 0x15: Reduce: the device has the computation.
    ComputeCode;
    /// 0x15: Reduce: logical computations only of integers.
    ComputeClass;
    /// 0x15: arrays: negation only where the device has it.
    NegateCapability;
    /// 0x15: arrays: negation of source 2 only with two sources.
    NegateSource2;
    /// 0x15: arrays: flush to zero only of floating-point results.
    FlushClass;
    /// 0x15: arrays: flush to zero only where the device has it.
    FlushCapability;
    /// 0x15: arrays: denormals as zero only of floating-point operands.
    DenormalClass;
    /// 0x15: arrays: denormals as zero only where the device has it.
    DenormalCapability;
    /// 0x15: arrays: rounding only of floating-point results.
    RoundingClass;
    /// 0x15: arrays: rounding 0 to 3.
    RoundingRange;
    /// 0x15: arrays: the device has the rounding.
    RoundingCapability;
    /// 0x15: arrays: signed only integers.
    SignedClass;
    /// 0x15: arrays: signed integers only where the device has them.
    SignedCapability;
    /// 0x15: arrays: saturation only of integer results.
    SaturateClass;
    /// 0x15: arrays: saturation only where the device has it.
    SaturateCapability;
    /// 0x15: arrays: no other compute flags.
    ComputeFlagsReserved;
    /// 0x15: Reduce: a used ID selector names a handle.
    SelectorEmpty;
    /// 0x15: Reduce: no reserved value in the ID selector.
    SelectorReserved;
    /// 0x15: Reduce: the ID selector names no second destination.
    SelectorDestination2;
    /// 0x1c: delta operations: source 1, or destination, 8-byte aligned.
    DeltaAddressAlignment;
    /// 0x1c: Create Delta: source 2 8-byte aligned.
    DeltaSource2Alignment;
    /// 0x1c: delta operations: size a multiple of 8.
    DeltaSizeAlignment;
    /// 0x1c: CRC seed address aligned to the size of the CRC.
    SeedAlignment;
    /// 0x15: Translation Fetch: region within the address space.
    FetchWrap;
    /// 0x1c: Translation Fetch: stride at least 4096.
    FetchStrideLow;
    /// 0x1c: Translation Fetch: stride a power of two.
    FetchStridePower;
    /// 0x1c: DIX Generate: destination 8-byte aligned.
    DixAlignment;
    /// 0x1c: arrays: source, or source 1, aligned to its elements.
    SourceAlignment;
    /// 0x1c: Reduce: source 2 aligned to its elements.
    Source2Alignment;
    /// 0x1c: arrays: destination, or destination 1, aligned to its elements.
    ResultAlignment;
    /// 0x1c: Reduce with Dualcast: destination 2 aligned to its elements.
    Result2Alignment;
    /// 0x17: dualcast destinations equal in bits 11:0.
    DualcastAlignment;
    /// 0x18: descriptor list 64-byte aligned.
    ListAlignment;
    /// 0x16: Memory Move without overlap where the device cannot.
    MoveOverlap;
    /// 0x16: Create Delta: record does not overlap source 1.
    DeltaOverlap1;
    /// 0x16: Create Delta: record does not overlap source 2.
    DeltaOverlap2;
    /// 0x16: Apply Delta: record does not overlap the destination.
    ApplyOverlap;
    /// 0x16: Dualcast: source does not overlap destination 1.
    DualcastOverlap1;
    /// 0x16: Dualcast: source does not overlap destination 2.
    DualcastOverlap2;
    /// 0x16: Dualcast: destinations do not overlap.
    DualcastOverlap12;
    /// 0x16: Copy with CRC: source does not overlap the destination.
    CopyCrcOverlap;
    /// 0x16: DIF: source does not overlap the computed destination.
    DifOverlap;
    /// 0x16: arrays: source, or source 1, and destination 1 apart, or the same array of one type.
    ResultOverlap;
    /// 0x16: Reduce: source 2 and destination 1 apart, or the same array of one type.
    Source2Overlap;
    /// 0x16: Reduce with Dualcast: source 1 and destination 2 apart, or the same array of one type.
    Result2Overlap;
    /// 0x16: Reduce with Dualcast: source 2 and destination 2 apart, or the same array of one type.
    Source2Result2Overlap;
    /// 0x16: Gather Reduce and Gather Copy: the list does not overlap the destination.
    ListOverlap;
    /// 0x28: inter-domain operations: the queue has PASIDs.
    DomainPasid;
    /// 0x29: the handle names an entry, and was issued where handles are.
    HandleRange;
    /// 0x29: reserved bits of the entry zero.
    EntryReserved;
    /// 0x29: the device has the entry's type.
    EntryType;
    /// 0x29: the entry's window has offset mode only where the device has it.
    EntryMode;
    /// 0x29: the entry's window is not empty.
    EntryEmpty;
    /// 0x29: the entry's window ends within the address space.
    EntryWrap;
    /// 0x29: the entry is usable.
    EntryUsable;
    /// 0x29: the entry names the submitter.
    EntrySubmitter;
    /// 0x29: the bitmap has the submitter.
    BitmapSubmitter;
    /// 0x2a: the entry permits reading.
    ReadPermission;
    /// 0x2a: the entry permits writing.
    WritePermission;
    /// 0x2b: the operand begins in the window.
    WindowBegin;
    /// 0x2b: the operand ends in the window.
    WindowEnd;
    /// 0x2c: Update Window: the handle names an entry, and was issued where handles are.
    UpdateHandle;
    /// 0x2c: Update Window: the entry allows updates.
    UpdateAllowed;
    /// 0x2c: Update Window: the entry gives access to the submitter's own memory.
    UpdateOwner;
    /// 0x2d: Update Window: an enabled window is not empty.
    UpdateEmpty;
    /// 0x2d: Update Window: the window ends within the address space.
    UpdateWrap;
    /// 0x2d: Update Window: offset mode only with an enabled window.
    UpdateModeUnused;
    /// 0x2d: Update Window: offset mode only where the device has it.
    UpdateMode;
    /// 0x12: Update Window: base and size zero without a window.
    UpdateUnused;
}
