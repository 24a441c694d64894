//! The values of `cmd_status`: the hardware's error code of the last command, or one of the driver's own codes below
//! (bit 31 set). Source: UAPI `enum idxd_scmd_stat`; conditions: K612 `device.c`.

/// The device is not disabled.
pub(crate) const DEVICE_ENABLED: u32 = 0x8000_0010;
/// The device is not enabled.
pub(crate) const DEVICE_NOT_ENABLED: u32 = 0x8000_0020;
/// The queue is already enabled.
pub(crate) const WQ_ENABLED: u32 = 0x8000_0021;
/// The queue has no group.
pub(crate) const WQ_NO_GROUP: u32 = 0x8003_0000;
/// The queue has no name.
pub(crate) const WQ_NO_NAME: u32 = 0x8004_0000;
/// A shared queue without PASIDs or ENQCMD.
pub(crate) const WQ_NO_SVM: u32 = 0x8005_0000;
/// A shared queue without a threshold.
pub(crate) const WQ_NO_THRESHOLD: u32 = 0x8006_0000;
/// A shared queue is configured where shared queues are impossible.
pub(crate) const WQ_NO_SHARED_SUPPORT: u32 = 0x800c_0000;
/// No queue is in a group.
pub(crate) const WQ_NONE_CONFIGURED: u32 = 0x800d_0000;
/// A dedicated kernel queue without privileged mode.
pub(crate) const WQ_NO_PRIVILEGE: u32 = 0x800f_0000;
/// A user queue without shared virtual addressing.
pub(crate) const WQ_USER_NO_IOMMU: u32 = 0x8011_0000;
/// `driver_name` is not the driver's.
pub(crate) const WQ_NO_DRIVER_NAME: u32 = 0x8020_0000;

use telpher_abi::registers::CommandError;

/// Returns the meaning of a status, as a clause.
pub(crate) fn meaning(status: u32) -> String {
    let text = match status {
        DEVICE_ENABLED => "the device is not disabled",
        DEVICE_NOT_ENABLED => "the device is not enabled",
        WQ_ENABLED => "the queue is already enabled",
        WQ_NO_GROUP => "the queue has no group: set group_id",
        WQ_NO_NAME => "the queue has no name: set name (after type, which clears it)",
        WQ_NO_SVM => "a shared queue needs PASIDs and ENQCMD, and a type",
        WQ_NO_THRESHOLD => "a shared queue needs a threshold: set threshold (after mode and size)",
        WQ_NO_SHARED_SUPPORT => "a group has a shared queue that cannot work: it needs PASIDs, ENQCMD and a type",
        WQ_NONE_CONFIGURED => "no queue is in a group",
        WQ_NO_PRIVILEGE => "a dedicated kernel queue needs privileged mode",
        WQ_USER_NO_IOMMU => "a user queue needs shared virtual addressing",
        WQ_NO_DRIVER_NAME => "driver_name is not the name of the driver: this kernel requires it",
        0 => "the driver left no status",
        hardware => {
            let code = u8::try_from(hardware & 0xff).unwrap_or_default();
            return format!("the device reported {code:#04x}: {}", CommandError::from_code(code).meaning());
        }
    };
    text.into()
}
