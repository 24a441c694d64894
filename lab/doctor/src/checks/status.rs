//! Meanings of the attribute `cmd_status`: the result of a device's last command, as a code of the driver or the
//! device.

use telpher_abi::registers::CommandError;

/// The driver's codes. Source: UAPI linux/idxd.h `enum idxd_scmd_stat`; linux-abi §6.
const DRIVER: [(u32, &str); 22] = [
    (0x8000_0010, "the device was enabled already"),
    (0x8000_0020, "the device is not enabled"),
    (0x8000_0021, "the queue was enabled already"),
    (0x8002_0000, "the kernel's DMA engine refused the device"),
    (0x8003_0000, "the queue has no group"),
    (0x8004_0000, "the queue has no name"),
    (0x8005_0000, "the queue is shared, and PASID or ENQCMD is missing"),
    (0x8006_0000, "the queue is shared and has no threshold"),
    (0x8007_0000, "the queue's portal could not be mapped"),
    (0x8008_0000, "there was no memory for the queue"),
    (0x8009_0000, "there was no memory for the queue's counters"),
    (0x800a_0000, "the kernel's DMA engine refused the queue"),
    (0x800b_0000, "the queue's node could not be created"),
    (0x800c_0000, "a queue is shared, which this machine does not support"),
    (0x800d_0000, "no queue is in a group"),
    (0x800e_0000, "the queue has no entries"),
    (0x800f_0000, "a privileged dedicated queue is not possible"),
    (0x8010_0000, "the queue got no interrupt"),
    (0x8011_0000, "queues for programs need shared virtual addressing"),
    (0x8012_0000, "there was no memory for the event log"),
    (0x8013_0000, "the event log's size cannot be changed"),
    (0x8020_0000, "the queue is for another driver (driver_name)"),
];

/// Returns the meaning; `None` if the last command succeeded.
pub(super) fn meaning(status: u32) -> Option<String> {
    let code = u8::try_from(status & 0xff).expect("eight bits");
    match (status, DRIVER.iter().find(|(known, _)| *known == status)) {
        (0, _) => None,
        (_, Some((_, meaning))) => Some(format!("the driver's error: {meaning}")),
        _ if status >> 8 == 0 => Some(format!("the device's error: {}", CommandError::from_code(code).meaning())),
        _ => Some(format!("{status:#010x}, which is unknown to this version of telpher")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_driver_and_device_are_distinguished() {
        assert_eq!(meaning(0), None);
        assert_eq!(meaning(0x23).unwrap(), "the device's error: the WQ's priority is zero");
        assert_eq!(meaning(0x800d_0000).unwrap(), "the driver's error: no queue is in a group");
        assert!(meaning(0x8fff_0000).unwrap().starts_with("0x8fff0000"));
        assert!(DRIVER.is_sorted());
    }
}
