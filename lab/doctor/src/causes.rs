//! Every cause that the doctor knows, with its stable name. `telpher doctor --causes` prints this table. A test
//! requires that each cause has a sample tree that shows this cause and no other.

use super::finding::{Severity, Stage};
use serde::Serialize;

/// One cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Cause {
    /// Stable name.
    pub(crate) id: &'static str,
    /// The stage that finds it.
    pub(crate) stage: Stage,
    /// The usual severity.
    pub(crate) severity: Severity,
    /// The description, a sentence without its full stop.
    pub(crate) what: &'static str,
}

macro_rules! causes {
    ($($name:ident = $id:literal, $stage:ident, $severity:ident, $what:literal;)*) => {
        $(pub(crate) const $name: Cause =
            Cause { id: $id, stage: Stage::$stage, severity: Severity::$severity, what: $what };)*
        /// All causes, in the order of the checks.
        pub(crate) const ALL: &[Cause] = &[$($name),*];
    };
}

causes! {
    PROCESSOR_WITHOUT_DSA = "processor-without-dsa", Firmware, Error,
        "This processor has no Data Streaming Accelerator";
    DEVICE_NOT_ENUMERATED = "device-not-enumerated", Firmware, Error,
        "The processor is of a kind that has DSA, but no DSA function is on its PCI buses";
    GUEST_WITHOUT_DEVICE = "guest-without-device", Firmware, Error,
        "This is a virtual machine, and its host gave it no DSA";
    VTD_OFF = "vtd-off", Firmware, Error,
        "The firmware describes no IOMMU (no ACPI table DMAR), so programs' addresses cannot be translated for the \
         device";
    GUEST_WITHOUT_IOMMU = "guest-without-iommu", Firmware, Error,
        "This virtual machine has a DSA but no virtual IOMMU, so the device cannot use programs' addresses";

    HBM_NOT_A_NODE = "hbm-not-a-node", Firmware, Note,
        "This is a Xeon Max, and its high-bandwidth memory is no memory node of its own";
    ADDRESSES_LIMITED = "addresses-limited", Firmware, Note,
        "Physical addresses have 46 bits or fewer, and the processor has 52";

    KERNEL_TOO_OLD = "kernel-too-old", Kernel, Error,
        "The kernel's idxd driver is older than the driver model that accel-config, telpher and other programs use \
         (Linux 5.15)";
    DRIVER_NOT_BUILT = "driver-not-built", Kernel, Error,
        "This kernel was built without the idxd driver";
    SVM_NOT_BUILT = "svm-not-built", Kernel, Error,
        "This kernel was built without shared virtual addressing for DSA, so the driver offers queues to the kernel \
         only";

    IOMMU_SWITCHED_OFF = "iommu-switched-off", Boot, Error,
        "The IOMMU is switched off on the kernel's command line, so the device cannot use programs' addresses";
    IOMMU_NOT_SWITCHED_ON = "iommu-not-switched-on", Boot, Error,
        "The machine has an IOMMU, but this kernel leaves it off unless its command line enables it";
    SCALABLE_MODE_OFF = "scalable-mode-off", Boot, Error,
        "The IOMMU runs without scalable mode, which shared virtual addressing needs";
    ATS_OFF = "ats-off", Boot, Error,
        "Address translation services are switched off on the kernel's command line (pci=noats)";

    DEEP_IDLE_STATES = "deep-idle-states", Boot, Note,
        "Idle processors sleep so deeply that waking takes 100 µs or more";

    IOMMU_WITHOUT_SCALABLE_MODE = "iommu-without-scalable-mode", Iommu, Error,
        "The device's IOMMU does not support scalable mode, which shared virtual addressing needs";
    IOMMU_WITHOUT_PASID = "iommu-without-pasid", Iommu, Error,
        "The device's IOMMU lacks PASID or page requests, which shared virtual addressing needs";
    FIVE_LEVEL_PAGING = "five-level-paging", Iommu, Error,
        "The kernel uses five levels of page tables and the device's IOMMU supports four, so they cannot be shared";
    GIBIBYTE_PAGES = "gibibyte-pages", Iommu, Error,
        "The processor uses pages of 1 GiB and the device's IOMMU does not support them, so page tables cannot be \
         shared";
    SVA_OFF = "sva-off", Iommu, Error,
        "The driver could not enable shared virtual addressing, and nothing on this machine shows why";

    SVA_PARAMETER_OFF = "sva-parameter-off", Modules, Error,
        "A parameter of the idxd module turns shared virtual addressing off (sva=0)";
    MODULE_BLACKLISTED = "module-blacklisted", Modules, Error,
        "The configuration keeps the idxd module from loading";
    MODULE_NOT_LOADED = "module-not-loaded", Modules, Error,
        "The machine has a DSA, and the idxd module is not loaded";
    BOUND_TO_VFIO = "bound-to-vfio", Modules, Error,
        "A DSA function belongs to vfio-pci, so the kernel's driver and its queues do not see it";
    BOUND_TO_UIO = "bound-to-uio", Modules, Error,
        "A DSA function belongs to a UIO driver, so the kernel's driver and its queues do not see it";
    DRIVER_REFUSED_DEVICE = "driver-refused-device", Modules, Error,
        "The idxd module is loaded, but a DSA function has no driver: the driver failed to bind to it";

    DEVICE_HALTED = "device-halted", Device, Error,
        "The device has halted on an error and accepts no descriptors until it is reset";
    DEVICE_ERROR = "device-error", Device, Warning,
        "The device has reported an error for which no completion record could be written";
    DEVICE_NOT_CONFIGURED = "device-not-configured", Device, Error,
        "The device has no configuration: none of its queues belongs to a group";
    DEVICE_FIXED = "device-fixed", Device, Error,
        "The device cannot be configured from this system, and it has no queue for programs";
    DEVICE_NOT_ENABLED = "device-not-enabled", Device, Error,
        "The device is configured but not enabled";
    DEVICE_REFUSED = "device-refused", Device, Error,
        "The device refused to be enabled with its present configuration";
    NODE_UNKNOWN = "node-unknown", Device, Note,
        "The firmware does not say which NUMA node the device is attached to";

    GROUP_WITHOUT_QUEUE = "group-without-queue", Groups, Error,
        "A group has engines but no queue, and a device is not enabled with such a group";
    READ_BUFFERS_FEW = "read-buffers-few", Groups, Warning,
        "A group may use fewer read buffers than its engines' share, which limits its bandwidth";
    READ_BUFFERS_LIMITED = "read-buffers-limited", Groups, Warning,
        "A group uses the device's read buffer limit, which is below its engines' share and limits its bandwidth";
    TRAFFIC_CLASS = "traffic-class", Groups, Warning,
        "A group of a DSA 1.x uses a traffic class other than 1";
    GROUP_WITHOUT_ENGINE = "group-without-engine", Engines, Error,
        "A group has queues but no engine to serve them, and a device is not enabled with such a group";
    ENGINES_IDLE = "engines-idle", Engines, Note,
        "Engines of an enabled device belong to no group and do nothing";

    QUEUE_WITHOUT_TYPE = "queue-without-type", Queues, Error,
        "The queue has no type, so it is neither for programs nor for the kernel";
    QUEUE_WITHOUT_GROUP = "queue-without-group", Queues, Error,
        "The queue belongs to no group, so no engine serves it";
    QUEUE_WITHOUT_SIZE = "queue-without-size", Queues, Error,
        "The queue has no entries";
    QUEUE_WITHOUT_NAME = "queue-without-name", Queues, Error,
        "The queue has no name, and the driver does not enable a queue without one";
    DRIVER_NAME_MISSING = "driver-name-missing", Queues, Error,
        "The queue names no driver, which Linux requires since 6.7";
    DRIVER_NAME_MISMATCH = "driver-name-mismatch", Queues, Error,
        "The queue is of one type and names the driver of another";
    THRESHOLD_MISSING = "threshold-missing", Queues, Error,
        "The queue is shared and its threshold is 0, so programs could never fill an entry";
    PRIORITY_ZERO = "priority-zero", Queues, Error,
        "The queue's priority is 0, which the device refuses";
    SHARED_UNSUPPORTED = "shared-unsupported", Queues, Error,
        "The queue is shared, but this machine has no ENQCMD to submit to it";
    QUEUE_REFUSED = "queue-refused", Queues, Error,
        "The device or its driver refused to enable the queue";
    QUEUE_NOT_ENABLED = "queue-not-enabled", Queues, Error,
        "The queue is configured but not enabled";
    ONLY_KERNEL_QUEUES = "only-kernel-queues", Queues, Error,
        "All enabled queues are the kernel's own; none is for programs";
    NO_USABLE_QUEUE = "no-usable-queue", Queues, Error,
        "No queue is enabled for programs, and no readable file shows why";
    QUEUE_BUSY = "queue-busy", Queues, Warning,
        "The queue is dedicated, and another program has it open";
    BLOCK_ON_FAULT_OFF = "block-on-fault-off", Queues, Note,
        "The queue does not let descriptors block on page faults: a descriptor that requests it ends with status 0x11";
    BLOCK_ON_FAULT_UNSUPPORTED = "block-on-fault-unsupported", Queues, Note,
        "This device cannot block on page faults, so the attribute is refused and a descriptor that requests it ends \
         with 0x11";
    PAGE_REQUESTS_OFF = "page-requests-off", Queues, Note,
        "Page requests are off for the queue, so block_on_fault is refused too";
    ADDRESS_CACHE_OFF = "address-cache-off", Queues, Warning,
        "The queue does not cache address translations in the device";
    TRANSFER_LIMIT_LOW = "transfer-limit-low", Queues, Warning,
        "The queue's largest transfer is below the driver's default of 2 MiB, so long copies are split into small \
         parts";
    QUEUE_SMALL = "queue-small", Queues, Note,
        "The queue has fewer than the 32 entries with which one queue reaches nearly full throughput";
    THRESHOLD_LOW = "threshold-low", Queues, Note,
        "The queue's threshold lets programs fill fewer than 32 of its entries, and each submission above that gets \
         Retry";
    BATCH_LIMIT_LOW = "batch-limit-low", Queues, Note,
        "The queue's longest batch is below the driver's default of 32 descriptors";
    OPERATIONS_RESTRICTED = "operations-restricted", Queues, Note,
        "The queue refuses some operations that the device supports";

    NODE_MISSING = "node-missing", Permissions, Error,
        "The queue is enabled, but its node in /dev does not exist";
    NODE_NOT_A_DEVICE = "node-not-a-device", Permissions, Error,
        "The file at the queue's path in /dev is not a device node";
    NODE_PERMISSION = "node-permission", Permissions, Error,
        "This user may not open the queue's node";
    NODE_CONFINED = "node-confined", Permissions, Error,
        "The node's permissions let this user open it, but a security module (SELinux, AppArmor) does not";
    DEVICE_CGROUP = "device-cgroup", Permissions, Error,
        "The device rules of this container or service forbid opening the queue's node";
    NO_PASID = "no-pasid", Permissions, Error,
        "The driver could not give this process' address space to the device";
    OPEN_FAILED = "open-failed", Permissions, Error,
        "The queue's node cannot be opened";

    RAWIO_MISSING = "rawio-missing", Submission, Warning,
        "The portal may not be mapped without CAP_SYS_RAWIO (INTEL-SA-01084): descriptors go by write(), slower and \
         without batches";
    RAWIO_OUT_OF_REACH = "rawio-out-of-reach", Submission, Warning,
        "The portal may not be mapped without CAP_SYS_RAWIO, and this container or service can never have it: \
         descriptors go by write()";
    RAWIO_OF_A_NAMESPACE = "rawio-of-a-namespace", Submission, Warning,
        "CAP_SYS_RAWIO is held only in a user namespace, but the kernel requires it in the initial one: descriptors go \
         by write()";

    QUEUES_FAR = "queues-far", Numa, Warning,
        "No usable queue is on a NUMA node that this process may run on";
    NODE_WITHOUT_QUEUE = "node-without-queue", Numa, Note,
        "A NUMA node that this process may run on has no usable queue";

    NUMA_BALANCING = "numa-balancing", Numa, Note,
        "NUMA balancing is on: the kernel moves pages of programs by itself";

    MOVDIR64B_MISSING = "movdir64b-missing", Instructions, Error,
        "The processor, as visible on this system, lacks MOVDIR64B, which submits to dedicated queues";
    ENQCMD_MASKED = "enqcmd-masked", Instructions, Error,
        "Linux 5.13 to 5.17 do not let programs use ENQCMD, so shared queues cannot be used";
    ENQCMD_MISSING = "enqcmd-missing", Instructions, Error,
        "ENQCMD, which submits to shared queues, cannot be used on this system";
    UMWAIT_MISSING = "umwait-missing", Instructions, Note,
        "UMWAIT is missing: programs wait by spinning or sleeping";

    HUGE_PAGES_NONE = "huge-pages-none", Memory, Note,
        "There are no huge pages, neither reserved nor transparent";
    TRANSPARENT_HUGE_PAGES_OFF = "transparent-huge-pages-off", Memory, Note,
        "Transparent huge pages are switched off, so `telpher tier` moves 2 MiB as 512 small pages";
    HUGE_PAGES_USED_UP = "huge-pages-used-up", Memory, Note,
        "All reserved huge pages are in use";
    GIGANTIC_PAGES_NONE = "gigantic-pages-none", Memory, Note,
        "This machine can run virtual machines, and no page of 1 GiB is reserved for their memory";
    CACHE_WAYS_FEW = "cache-ways-few", Memory, Note,
        "Devices may fill two or fewer ways of the last-level cache";

    CPU_QUOTA = "cpu-quota", Container, Warning,
        "A control group allows less than one processor, and a program that waits by spinning is stopped until the \
         next period";
    HUGETLB_LIMIT = "hugetlb-limit", Container, Note,
        "Huge pages are reserved on this machine, but a control group forbids using them";

    PROGRAM_UNREADABLE = "program-unreadable", Program, Warning,
        "The list of files that the program has mapped cannot be read, so its libraries are not known";
    DML_TWICE = "dml-twice", Program, Warning,
        "The program has more than one Data Mover Library, and a call may reach any of them";
    DML_OF_INTEL = "dml-of-intel", Program, Note,
        "The program has Intel's Data Mover Library, which is not maintained, and uses no dedicated queue and no DSA 3";
}
