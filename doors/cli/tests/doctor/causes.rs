//! The sample trees: for each cause, the changes to the healthy machine. Several changes are one fact and its
//! consequences: for example, without an IOMMU the driver turns shared virtual addressing off.

use crate::tree::Change::{self, Gone, Link, Names, NoDevice, Node, Program, Text, With, Without};

/// A cause and its sample machine.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) id: &'static str,
    pub(crate) changes: &'static [&'static [Change]],
}

macro_rules! cases {
    ($($id:literal: $($changes:expr),+;)+) => {
        pub(crate) const CASES: &[Case] = &[$(Case { id: $id, changes: &[$($changes),+] }),+];
    };
}

/// No DSA on the PCI bus, and so no device on the driver's bus.
const NO_DEVICE: &[Change] = &[Names("/sys/bus/pci/devices", &["0000:00:00.0"]), Names("/sys/bus/dsa/devices", &[])];

/// The driver is missing.
const NO_DRIVER: &[Change] = &[
    Gone("/sys/module/idxd"),
    Gone("/sys/bus/dsa"),
    Gone("/sys/bus/dsa/drivers"),
    Gone("/sys/bus/pci/devices/0000:6a:01.0/driver"),
    Gone("/sys/bus/pci/devices/0000:e7:01.0/driver"),
    Names("/sys/bus/dsa/devices", &[]),
];

/// The driver could not enable shared virtual addressing, and refused queues for programs.
const NO_SVA: &[Change] = &[
    Text("/sys/bus/dsa/devices/dsa0/pasid_enabled", "0"),
    Text("/sys/bus/dsa/devices/dsa2/pasid_enabled", "0"),
    Text("/sys/bus/dsa/devices/wq0.0/state", "disabled"),
    Text("/sys/bus/dsa/devices/wq0.1/state", "disabled"),
    Text("/sys/bus/dsa/devices/wq2.0/state", "disabled"),
    Text("/sys/bus/dsa/devices/dsa0/cmd_status", "0x80110000"),
    Text("/sys/bus/dsa/devices/dsa2/cmd_status", "0x80110000"),
];

const NO_IOMMU: &[Change] = &[Names("/sys/class/iommu", &[])];

/// Another driver is bound to the second function, and the device is missing on the bus.
const NO_DSA2: &[Change] = &[Names(
    "/sys/bus/dsa/devices",
    &["dsa0", "engine0.0", "engine0.1", "engine0.2", "engine0.3", "group0.0", "wq0.0", "wq0.1"],
)];

const DSA2_DISABLED: &[Change] =
    &[Text("/sys/bus/dsa/devices/dsa2/state", "disabled"), Text("/sys/bus/dsa/devices/wq2.0/state", "disabled")];

const SHARED_DISABLED: &[Change] = &[Text("/sys/bus/dsa/devices/wq0.0/state", "disabled")];
const DEDICATED_DISABLED: &[Change] = &[Text("/sys/bus/dsa/devices/wq0.1/state", "disabled")];

const UNMAPPABLE: &[Change] = &[Node("wq0.0", "map", 1), Node("wq0.1", "map", 1), Node("wq2.0", "map", 1)];

const CMDLINE: &str = "/proc/cmdline";
const CPUINFO: &str = "/proc/cpuinfo";
const RELEASE: &str = "/proc/sys/kernel/osrelease";
const STATUS: &str = "/proc/self/status";

const GUEST: &str = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon\nflags\t\t: fpu la57 movdir64b enqcmd waitpkg hypervisor";
const XEON_MAX: &str = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\
                        model name\t: Intel(R) Xeon(R) CPU Max 9480\nflags\t\t: fpu la57 movdir64b enqcmd waitpkg";
const LIMITED: &str = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon\n\
                       flags\t\t: fpu la57 movdir64b enqcmd waitpkg\n\
                       address sizes\t: 46 bits physical, 57 bits virtual";
const WITHOUT_ENQCMD: &str = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon\nflags\t\t: fpu la57 movdir64b waitpkg";

cases! {
    "processor-without-dsa": NO_DEVICE, &[Text(CPUINFO, "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: EPYC\nflags\t\t: fpu sse2")];
    "device-not-enumerated": NO_DEVICE;
    "guest-without-device": NO_DEVICE, &[Text(CPUINFO, GUEST)];
    "vtd-off": &[Without("/sys/firmware/acpi/tables", "DMAR")], NO_IOMMU, NO_SVA;
    "guest-without-iommu": &[Without("/sys/firmware/acpi/tables", "DMAR"), Text(CPUINFO, GUEST)], NO_IOMMU, NO_SVA;

    "hbm-not-a-node": &[Text(CPUINFO, XEON_MAX)];
    "addresses-limited": &[Text(CPUINFO, LIMITED)];

    "kernel-too-old": &[Names("/sys/bus/dsa/drivers", &["dsa"])];
    "driver-not-built": &[Text("/lib/modules/6.12.1-amd64/modules.dep", "kernel/drivers/dma/ioat/ioatdma.ko:")], NO_DRIVER;
    "svm-not-built": &[Text("/boot/config-6.12.1-amd64", "CONFIG_INTEL_IOMMU=y\nCONFIG_INTEL_IDXD=m")], NO_SVA;

    "iommu-switched-off": &[Text(CMDLINE, "ro intel_iommu=off")], NO_IOMMU, NO_SVA;
    "iommu-not-switched-on": &[Text(CMDLINE, "ro quiet")], NO_IOMMU, NO_SVA;
    "scalable-mode-off": &[Text(CMDLINE, "ro intel_iommu=on")], NO_SVA;
    "ats-off": &[Text(CMDLINE, "ro intel_iommu=on,sm_on pci=noats")], NO_SVA;
    "deep-idle-states": &[
        Names("/sys/devices/system/cpu/cpu0/cpuidle", &["state0", "state1", "state2"]),
        Text("/sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL"),
        Text("/sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "0"),
        Text("/sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C1E"),
        Text("/sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "4"),
        Text("/sys/devices/system/cpu/cpu0/cpuidle/state2/name", "C6"),
        Text("/sys/devices/system/cpu/cpu0/cpuidle/state2/latency", "290"),
        Text("/sys/devices/system/cpu/cpu0/cpuidle/state2/disable", "0"),
    ];

    "iommu-without-scalable-mode": &[Text("/sys/class/iommu/dmar1/intel-iommu/ecap", "f050df")], NO_SVA;
    "iommu-without-pasid": &[Text("/sys/class/iommu/dmar1/intel-iommu/ecap", "3ee9e86f050df")], NO_SVA;
    "five-level-paging": &[Text("/sys/class/iommu/dmar0/intel-iommu/cap", "9ed008c40780c66")], NO_SVA;
    "gibibyte-pages": &[Text("/sys/class/iommu/dmar0/intel-iommu/cap", "18ed008c40780c66")], NO_SVA;
    "sva-off": NO_SVA;

    "sva-parameter-off": &[Text("/sys/module/idxd/parameters/sva", "N")], NO_SVA;
    "module-blacklisted": &[Text("/etc/modprobe.d/local.conf", "# kept off\nblacklist idxd")], NO_DRIVER;
    "module-not-loaded": NO_DRIVER;
    "bound-to-vfio": &[Link("/sys/bus/pci/devices/0000:e7:01.0/driver", "../../../bus/pci/drivers/vfio-pci")], NO_DSA2;
    "bound-to-uio": &[Link("/sys/bus/pci/devices/0000:e7:01.0/driver", "../../../bus/pci/drivers/uio_pci_generic")], NO_DSA2;
    "driver-refused-device": &[Gone("/sys/bus/pci/devices/0000:e7:01.0/driver")], NO_DSA2;

    "device-halted": &[Text("/sys/bus/dsa/devices/dsa2/state", "halted")];
    "device-error": &[Text("/sys/bus/dsa/devices/dsa0/errors",
        "00000000,00000000,00000000,00000000,00000000,00000000,00000000,00015309")];
    "device-not-configured": DSA2_DISABLED, &[
        Text("/sys/bus/dsa/devices/group2.0/work_queues", ""),
        Text("/sys/bus/dsa/devices/group2.0/engines", ""),
        Text("/sys/bus/dsa/devices/engine2.0/group_id", "-1"),
        Text("/sys/bus/dsa/devices/engine2.1/group_id", "-1"),
        Text("/sys/bus/dsa/devices/engine2.2/group_id", "-1"),
        Text("/sys/bus/dsa/devices/engine2.3/group_id", "-1"),
        Text("/sys/bus/dsa/devices/wq2.0/group_id", "-1"),
        Text("/sys/bus/dsa/devices/wq2.0/size", "0"),
        Text("/sys/bus/dsa/devices/wq2.0/type", "none"),
    ];
    "device-fixed": DSA2_DISABLED, &[Text("/sys/bus/dsa/devices/dsa2/configurable", "0")];
    "device-not-enabled": DSA2_DISABLED;
    "device-refused": DSA2_DISABLED, &[Text("/sys/bus/dsa/devices/dsa2/cmd_status", "0x18")];
    "node-unknown": &[Text("/sys/bus/dsa/devices/dsa2/numa_node", "-1")];

    "group-without-queue": DSA2_DISABLED, &[
        Text("/sys/bus/dsa/devices/group2.0/engines", "engine2.0 engine2.1 engine2.2"),
        Text("/sys/bus/dsa/devices/group2.1/engines", "engine2.3"),
        Text("/sys/bus/dsa/devices/engine2.3/group_id", "1"),
        Text("/sys/bus/dsa/devices/dsa2/cmd_status", "0x15"),
    ];
    "read-buffers-few": &[Text("/sys/bus/dsa/devices/group0.0/read_buffers_allowed", "16")];
    "read-buffers-limited": &[
        Text("/sys/bus/dsa/devices/dsa0/read_buffer_limit", "16"),
        Text("/sys/bus/dsa/devices/group0.0/use_read_buffer_limit", "1"),
    ];
    "traffic-class": &[Text("/sys/bus/dsa/devices/group0.0/traffic_class_b", "0")];
    "group-without-engine": DSA2_DISABLED, &[
        Text("/sys/bus/dsa/devices/group2.0/engines", ""),
        Text("/sys/bus/dsa/devices/engine2.0/group_id", "-1"),
        Text("/sys/bus/dsa/devices/engine2.1/group_id", "-1"),
        Text("/sys/bus/dsa/devices/engine2.2/group_id", "-1"),
        Text("/sys/bus/dsa/devices/engine2.3/group_id", "-1"),
    ];
    "engines-idle": &[
        Text("/sys/bus/dsa/devices/engine2.3/group_id", "-1"),
        Text("/sys/bus/dsa/devices/group2.0/engines", "engine2.0 engine2.1 engine2.2"),
    ];

    "queue-without-type": DEDICATED_DISABLED, &[
        Text("/sys/bus/dsa/devices/wq0.1/type", "none"),
        Text("/sys/bus/dsa/devices/wq0.1/name", ""),
        Text("/sys/bus/dsa/devices/wq0.1/mode", "shared"),
        Text("/sys/bus/dsa/devices/wq0.1/priority", "0"),
    ];
    "queue-without-group": DEDICATED_DISABLED, &[
        Text("/sys/bus/dsa/devices/wq0.1/group_id", "-1"),
        Text("/sys/bus/dsa/devices/group0.0/work_queues", "wq0.0"),
    ];
    "queue-without-size": DEDICATED_DISABLED, &[Text("/sys/bus/dsa/devices/wq0.1/size", "0")];
    "queue-without-name": DEDICATED_DISABLED, &[Text("/sys/bus/dsa/devices/wq0.1/name", "")];
    "driver-name-missing": DEDICATED_DISABLED, &[
        Text("/sys/bus/dsa/devices/wq0.1/driver_name", ""),
        Text("/sys/bus/dsa/devices/dsa0/cmd_status", "0x80200000"),
    ];
    "driver-name-mismatch": DEDICATED_DISABLED, &[Text("/sys/bus/dsa/devices/wq0.1/driver_name", "dmaengine")];
    "threshold-missing": SHARED_DISABLED, &[
        Text("/sys/bus/dsa/devices/wq0.0/threshold", "0"),
        // The driver forgets the type of a queue that it refuses.
        Text("/sys/bus/dsa/devices/wq0.0/type", "none"),
        Text("/sys/bus/dsa/devices/dsa0/cmd_status", "0x80060000"),
    ];
    "priority-zero": DEDICATED_DISABLED, &[
        Text("/sys/bus/dsa/devices/wq0.1/priority", "0"),
        Text("/sys/bus/dsa/devices/wq0.1/type", "none"),
        Text("/sys/bus/dsa/devices/dsa0/cmd_status", "0x23"),
    ];
    "shared-unsupported": SHARED_DISABLED, &[
        Text(CPUINFO, WITHOUT_ENQCMD),
        Text("/sys/bus/dsa/devices/dsa0/cmd_status", "0x80050000"),
    ];
    "queue-refused": DEDICATED_DISABLED, &[
        Text("/sys/bus/dsa/devices/wq0.1/type", "none"),
        Text("/sys/bus/dsa/devices/dsa0/cmd_status", "0x80070000"),
    ];
    "queue-not-enabled": DEDICATED_DISABLED;
    "only-kernel-queues": &[
        Text("/sys/bus/dsa/devices/wq0.0/type", "kernel"),
        Text("/sys/bus/dsa/devices/wq0.1/type", "kernel"),
        Text("/sys/bus/dsa/devices/wq2.0/type", "kernel"),
        Text("/sys/bus/dsa/devices/wq0.0/driver_name", "dmaengine"),
        Text("/sys/bus/dsa/devices/wq0.1/driver_name", "dmaengine"),
        Text("/sys/bus/dsa/devices/wq2.0/driver_name", "dmaengine"),
    ];
    "no-usable-queue": &[
        Gone("/sys/bus/dsa/devices/dsa0/state"),
        Gone("/sys/bus/dsa/devices/dsa2/state"),
    ];
    "queue-busy": &[Node("wq0.1", "open", 16), Text("/sys/bus/dsa/devices/wq0.1/clients", "1")];
    "block-on-fault-off": &[Text("/sys/bus/dsa/devices/wq0.1/block_on_fault", "0")];
    "block-on-fault-unsupported": &[
        Text("/sys/bus/dsa/devices/dsa2/gen_cap", "0x40915f010e"),
        Text("/sys/bus/dsa/devices/wq2.0/block_on_fault", "0"),
    ];
    "page-requests-off": &[
        Text("/sys/bus/dsa/devices/wq0.1/prs_disable", "1"),
        Text("/sys/bus/dsa/devices/wq0.1/block_on_fault", "0"),
    ];
    "address-cache-off": &[Text("/sys/bus/dsa/devices/wq0.1/ats_disable", "1")];
    "transfer-limit-low": &[Text("/sys/bus/dsa/devices/wq0.1/max_transfer_size", "16384")];
    "queue-small": &[Text("/sys/bus/dsa/devices/wq0.1/size", "16")];
    "threshold-low": &[Text("/sys/bus/dsa/devices/wq0.0/threshold", "8")];
    "batch-limit-low": &[Text("/sys/bus/dsa/devices/wq0.1/max_batch_size", "16")];
    "operations-restricted": &[Text("/sys/bus/dsa/devices/wq0.1/op_config",
        "00000000,00000000,00000000,00000000,00000000,00000000,00000000,0000001d")];

    "node-missing": &[Node("wq0.1", "stat", 2)];
    "node-not-a-device": &[NoDevice("wq0.1")];
    "node-permission": &[Node("wq0.1", "open", 13), Text(STATUS, "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t4 27\nCapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\nCpus_allowed_list:\t0-111")];
    "node-confined": &[Node("wq0.1", "open", 13), Text("/sys/fs/selinux/enforce", "1"), Text("/proc/self/attr/current", "system_u:system_r:container_t:s0:c1,c2")];
    "device-cgroup": &[Node("wq0.1", "open", 1)];
    "no-pasid": &[Node("wq0.1", "open", 28)];
    "open-failed": &[Node("wq0.1", "open", 6)];

    "rawio-missing": UNMAPPABLE, &[Text(STATUS, "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\nCpus_allowed_list:\t0-111")];
    "rawio-out-of-reach": UNMAPPABLE, &[Text(STATUS, "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\nCpus_allowed_list:\t0-111")];
    "rawio-of-a-namespace": UNMAPPABLE, &[Text("/proc/self/uid_map", "0 100000 65536")];

    "queues-far": &[Text(STATUS, "CapEff:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\nCpus_allowed_list:\t112-167")];
    "node-without-queue": &[Text("/sys/bus/dsa/devices/dsa2/numa_node", "0")];

    "numa-balancing": &[Text("/proc/sys/kernel/numa_balancing", "1")];
    "movdir64b-missing": &[Text(CPUINFO, "vendor_id\t: GenuineIntel\nmodel name\t: Xeon\nflags\t\t: fpu enqcmd waitpkg")];
    "enqcmd-masked": &[Text(CPUINFO, WITHOUT_ENQCMD), Text(RELEASE, "5.15.0-91-generic")];
    "enqcmd-missing": &[Text(CPUINFO, WITHOUT_ENQCMD)];
    "umwait-missing": &[Text(CPUINFO, "vendor_id\t: GenuineIntel\nmodel name\t: Xeon\nflags\t\t: fpu movdir64b enqcmd")];

    "huge-pages-none": &[
        Text("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0"),
        Text("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0"),
        Text("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
    ];
    "transparent-huge-pages-off": &[Text("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")];
    "huge-pages-used-up": &[Text("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0")];
    "gigantic-pages-none": HOST_OF_MACHINES,
        &[Text("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0")];
    "cache-ways-few": &[
        Text("/sys/fs/resctrl/info/L3/shareable_bitmask", "6000"),
        Text("/sys/fs/resctrl/info/L3/cbm_mask", "7fff"),
    ];
    "cpu-quota": &[Text("/sys/fs/cgroup/user.slice/cpu.max", "50000 100000")];
    "hugetlb-limit": &[Text("/sys/fs/cgroup/user.slice/hugetlb.2MB.max", "0")];

    "program-unreadable": &[Program(4242), Gone(MAPS)];
    "dml-twice": LOADS, &[Text(EXECUTABLE, DML_OF_INTEL), Text(LIBDML, DML_OF_TELPHER)];
    "dml-of-intel": LOADS, &[Text(EXECUTABLE, DML_OF_INTEL), Text(LIBDML, "")];
}

/// A kernel that can run virtual machines, and huge pages of both sizes.
const HOST_OF_MACHINES: &[Change] = &[
    Names("/sys/module/kvm_intel", &["parameters"]),
    Names("/sys/kernel/mm/hugepages", &["hugepages-2048kB", "hugepages-1048576kB"]),
    Text("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "0"),
];

/// A process that has two files mapped as code.
pub(crate) const LOADS: &[Change] =
    &[Program(4242), Text(MAPS, "0-0 r-xp 0 fe:00 1 /opt/server\n0-0 r-xp 0 fe:00 2 /opt/libdml.so.1.2.0")];
const MAPS: &str = "/proc/4242/maps";
const EXECUTABLE: &str = "/opt/server";
const LIBDML: &str = "/opt/libdml.so.1.2.0";
const DML_OF_INTEL: &str = "Intel's Data Mover Library, version 1.1.1";
pub(crate) const DML_OF_TELPHER: &str = "telpher's Data Mover Library, version 1.2.0";

const DISTANT: &str = "/sys/bus/dsa/devices/dsa2/numa_node";

/// Changes that look like a cause but are harmless or have another cause: description, changes, expected findings.
type Harmless = (&'static str, &'static [&'static [Change]], &'static [&'static str]);

/// All such cases.
pub(crate) const HARMLESS: &[Harmless] = &[
    // RHEL 9 and others backport the driver to older kernel versions.
    ("a program with telpher's library", &[LOADS, &[Text(EXECUTABLE, ""), Text(LIBDML, DML_OF_TELPHER)]], &[]),
    ("a program without a library", &[LOADS, &[Text(EXECUTABLE, ""), Text(LIBDML, "")]], &[]),
    ("an old number", &[&[Text(RELEASE, "5.14.0-427.26.1.el9_4.x86_64")]], &[]),
    ("an older number", &[&[Text(RELEASE, "4.18.0-553.el8_10.x86_64")]], &[]),
    // Before 6.7 the driver has no driver_name, and before 6.4 none of the others.
    (
        "an earlier kernel",
        &[&[
            Text(RELEASE, "5.15.0-91-generic"),
            Gone("/sys/bus/dsa/devices/wq0.0/driver_name"),
            Gone("/sys/bus/dsa/devices/wq0.1/driver_name"),
            Gone("/sys/bus/dsa/devices/wq2.0/driver_name"),
            Without("/sys/bus/dsa/devices", "dsa!wq0.0"),
            Without("/sys/bus/dsa/devices", "dsa!wq0.1"),
            Without("/sys/bus/dsa/devices", "dsa!wq2.0"),
        ]],
        &[],
    ),
    // The third IOMMU has no PASID, like most on Sapphire Rapids, and no DSA is behind it.
    (
        "no sm_on and an IOMMU of others",
        &[&[Text(CMDLINE, "ro intel_iommu=on iommu=pt")], NO_SVA],
        &["scalable-mode-off"],
    ),
    (
        "no sm_on and it is unknown which IOMMU serves the device",
        &[
            &[
                Gone("/sys/bus/pci/devices/0000:6a:01.0/iommu"),
                Gone("/sys/bus/pci/devices/0000:e7:01.0/iommu"),
                Text(CMDLINE, "ro intel_iommu=on"),
            ],
            NO_SVA,
        ],
        &["scalable-mode-off"],
    ),
    // A valid combination of words.
    ("words", &[&[Text(CMDLINE, "ro intel_iommu=on,sm_on iommu=pt no5lvl lockdown=integrity")]], &[]),
    (
        "scalable by default",
        &[&[
            Text(CMDLINE, "ro quiet"),
            Text(
                "/boot/config-6.12.1-amd64",
                "CONFIG_INTEL_IDXD=m\nCONFIG_INTEL_IDXD_SVM=y\nCONFIG_INTEL_IOMMU_SCALABLE_MODE_DEFAULT_ON=y",
            ),
        ]],
        &[],
    ),
    // An analytics accelerator (IAX) with a queue that is not ready and one that works.
    ("another kind of device", &[IAX], &[]),
    ("another kind of device alone", &[IAX, KERNELS], &["only-kernel-queues"]),
    // Two quarters of one socket, the device in one of them.
    (
        "parts of a socket",
        &[&[
            Text(DISTANT, "0"),
            Text("/sys/devices/system/node/node0/distance", "10 12 31"),
            Text("/sys/devices/system/node/node1/distance", "12 10 31"),
        ]],
        &[],
    ),
    (
        "pinned to a part of the socket",
        &[&[
            Text(DISTANT, "0"),
            Text("/sys/devices/system/node/node1/distance", "12 10 31"),
            Text(STATUS, "CapEff:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\nCpus_allowed_list:\t56-111"),
        ]],
        &[],
    ),
    // The kernel's own queue beside those for programs.
    (
        "a queue of the kernel",
        &[&[
            Text("/sys/bus/dsa/devices/wq0.1/type", "kernel"),
            Text("/sys/bus/dsa/devices/wq0.1/name", "dmaengine"),
            Text("/sys/bus/dsa/devices/wq0.1/driver_name", "dmaengine"),
            Text("/sys/bus/dsa/devices/wq0.1/block_on_fault", "0"),
        ]],
        &[],
    ),
    // Hosts with processors of other vendors have no DSA.
    // Findings about `telpher tier` are reported even without a device.
    (
        "no device and no huge pages",
        &[NO_DEVICE, &[Text("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")]],
        &["device-not-enumerated", "transparent-huge-pages-off"],
    ),
    (
        "high-bandwidth memory as a node of its own",
        &[&[
            Text(CPUINFO, XEON_MAX),
            Names("/sys/devices/system/node", &["node0", "node1", "node2", "node3"]),
            Text("/sys/devices/system/node/node3/cpulist", ""),
        ]],
        &[],
    ),
    (
        "an idle state that is switched off, and pages for guests",
        &[
            HOST_OF_MACHINES,
            &[
                Text("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "4"),
                Names("/sys/devices/system/cpu/cpu0/cpuidle", &["state0"]),
                Text("/sys/devices/system/cpu/cpu0/cpuidle/state0/name", "C6"),
                Text("/sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "290"),
                Text("/sys/devices/system/cpu/cpu0/cpuidle/state0/disable", "1"),
                Text("/proc/sys/kernel/numa_balancing", "0"),
                Text("/sys/fs/resctrl/info/L3/shareable_bitmask", "7800"),
                Text("/sys/fs/resctrl/info/L3/cbm_mask", "7fff"),
            ],
        ],
        &[],
    ),
    (
        "a guest of another maker",
        &[NO_DEVICE, &[Text(CPUINFO, "vendor_id\t: AuthenticAMD\nmodel name\t: EPYC\nflags\t\t: fpu sse2 hypervisor")]],
        &["processor-without-dsa"],
    ),
];

/// A device of the other type (IAX) on the same bus.
const IAX: &[Change] = &[
    With("/sys/bus/dsa/devices", "iax1"),
    With("/sys/bus/dsa/devices", "wq1.0"),
    With("/sys/bus/dsa/devices", "wq1.1"),
    Link("/sys/bus/dsa/devices/iax1", "../../../devices/pci0000:6a/0000:6a:02.0/iax1"),
    Link("/sys/bus/dsa/devices/wq1.0", "../../../devices/pci0000:6a/0000:6a:02.0/iax1/wq1.0"),
    Link("/sys/bus/dsa/devices/wq1.1", "../../../devices/pci0000:6a/0000:6a:02.0/iax1/wq1.1"),
    Text("/sys/bus/dsa/devices/iax1/state", "enabled"),
    Text("/sys/bus/dsa/devices/iax1/pasid_enabled", "1"),
    Text("/sys/bus/dsa/devices/wq1.0/state", "enabled"),
    Text("/sys/bus/dsa/devices/wq1.0/type", "user"),
    Text("/sys/bus/dsa/devices/wq1.0/mode", "shared"),
    Text("/sys/bus/dsa/devices/wq1.0/size", "16"),
    Text("/sys/bus/dsa/devices/wq1.0/block_on_fault", "0"),
    Text("/sys/bus/dsa/devices/wq1.1/state", "disabled"),
    Text("/sys/bus/dsa/devices/wq1.1/type", "kernel"),
    Text("/sys/bus/dsa/devices/wq1.1/mode", "dedicated"),
    Text("/sys/bus/dsa/devices/wq1.1/size", "16"),
    Text("/sys/bus/dsa/devices/wq1.1/group_id", "0"),
];

/// All DSA queues are the kernel's.
const KERNELS: &[Change] = &[
    Text("/sys/bus/dsa/devices/wq0.0/type", "kernel"),
    Text("/sys/bus/dsa/devices/wq0.1/type", "kernel"),
    Text("/sys/bus/dsa/devices/wq2.0/type", "kernel"),
];
