//! Every refusal of the driver, with its errno and its effect, as seen by a Python program. `sources/attributes.py`
//! describes the syntax of the tables, the driver's documentation the rules.

use crate::harness::{Run, View, in_both_views, lacking};

fn ready(test: &str) -> bool {
    !lacking(test, &[("/usr/bin/python3", "python3-minimal")])
}

/// One dedicated queue on one engine, ready to be enabled.
const HALF: &str = "
    D/engine0.0/group_id = 0
    D/wq0.0/group_id = 0
    D/wq0.0/mode = dedicated
    D/wq0.0/size = 16
    D/wq0.0/priority = 10
    D/wq0.0/type = user
    D/wq0.0/name = a
    D/wq0.0/driver_name = user
";

in_both_views! {
    fn queue_attributes_refuse_invalid_values(view: View) {
        if !ready("queue_attributes_refuse_invalid_values") {
            return;
        }
        Run::new(view).attributes(
            r#"
            D/wq0.0/group_id = 4 ! EINVAL
            D/wq0.0/group_id = -2 ! EINVAL
            D/wq0.0/group_id = x ! EINVAL
            D/wq0.0/group_id ? -1
            D/wq0.0/mode = split ! EINVAL
            D/wq0.0/mode ? shared
            D/wq0.0/size = 129 ! EINVAL
            D/wq0.0/size = 100
            D/wq0.1/size = 29 ! EINVAL
            D/wq0.1/size = 28
            D/wq0.0/size = 101 ! EINVAL
            D/wq0.0/size ? 100
            D/wq0.1/size = 0
            D/wq0.0/size = x ! EINVAL
            D/wq0.0/priority = 16 ! EINVAL
            D/wq0.0/priority = 15
            D/wq0.0/priority ? 15
            # Threshold: 1 to the size, of a shared queue.
            D/wq0.0/threshold = 101 ! EINVAL
            D/wq0.0/threshold = 0 ! EINVAL
            D/wq0.0/threshold = 100
            D/wq0.2/threshold = 1 ! EINVAL
            D/wq0.0/mode = dedicated
            D/wq0.0/threshold ? 0
            D/wq0.0/threshold = 5 ! EINVAL
            D/wq0.0/enqcmds_retries = 5 ! EOPNOTSUPP
            D/wq0.0/mode = shared
            D/wq0.0/enqcmds_retries = 65
            D/wq0.0/enqcmds_retries ? 64
            D/wq0.0/type = usr ! EINVAL
            D/wq0.0/type = user
            D/wq0.0/name = kept
            D/wq0.0/type = user
            D/wq0.0/name = "  kept \n"
            D/wq0.0/name ? kept
            # Another type forgets the name.
            D/wq0.0/type = kernel
            D/wq0.0/name ?
            D/wq0.0/max_transfer_size = 0 ! EINVAL
            D/wq0.0/max_transfer_size = 2147483649 ! EINVAL
            D/wq0.0/max_transfer_size = 2147483648
            D/wq0.0/max_transfer_size = 5000
            D/wq0.0/max_transfer_size ? 8192
            D/wq0.0/max_batch_size = 0 ! EINVAL
            D/wq0.0/max_batch_size = 1025 ! EINVAL
            D/wq0.0/max_batch_size = 33
            D/wq0.0/max_batch_size ? 64
            D/wq0.0/cdev_minor ? ! ENXIO
            D/wq0.0/state = enabled ! EACCES
            D/wq0.0/state ? disabled
            D/wq0.0/nothing ? ! ENOENT
            D/wq0.8/state ? ! ENOENT
            "#,
        );
    }

    fn device_group_and_engine_attributes_refuse_invalid_values(view: View) {
        if !ready("device_group_and_engine_attributes_refuse_invalid_values") {
            return;
        }
        Run::new(view).attributes(
            r#"
            D/engine0.0/group_id = 4 ! EINVAL
            D/engine0.0/group_id = -2 ! EINVAL
            D/engine0.0/group_id = 3
            D/engine0.0/group_id ? 3
            D/group0.3/engines ? engine0.0
            D/engine0.0/group_id = -1
            D/group0.3/engines ?
            D/engine0.0/group_id = 0
            D/engine0.1/group_id = 0
            D/dsa0/read_buffer_limit = 97 ! EINVAL
            D/group0.0/use_read_buffer_limit = 1 ! EPERM
            D/dsa0/read_buffer_limit = 96
            D/group0.0/use_read_buffer_limit = 1
            D/group0.0/read_buffers_reserved = 97 ! EINVAL
            D/group0.0/read_buffers_reserved = 90
            D/group0.1/read_buffers_reserved = 7 ! EINVAL
            D/group0.1/read_buffers_reserved = 6
            D/group0.0/read_buffers_allowed = 7 ! EINVAL
            D/group0.0/read_buffers_allowed = 91 ! EINVAL
            D/group0.0/read_buffers_allowed = 90
            # Version 1 devices keep their traffic classes.
            D/group0.0/traffic_class_a = 0 ! EPERM
            D/group0.0/traffic_class_a ? 1
            D/dsa0/cmd_status = 1
            D/dsa0/cmd_status ? 0
            D/dsa0/state = x ! EACCES
            D/dsa0/numa_node ? 0
            R/idxd/bind ? ! EACCES
            "#,
        );
    }

    fn binding_refuses_in_the_drivers_order_with_its_codes(view: View) {
        if !ready("binding_refuses_in_the_drivers_order_with_its_codes") {
            return;
        }
        Run::new(view).with("--abi").with("6.12").attributes(
            r#"
            R/idxd/bind = dsa1 ! ENODEV
            R/idxd/unbind = dsa0 ! ENODEV
            R/user/bind = wq0.0 ! ENXIO
            # No queue in a group.
            R/idxd/bind = dsa0 ! ENXIO
            D/dsa0/cmd_status ? 0x800d0000
            # A shared queue whose type has no address spaces.
            D/wq0.0/group_id = 0
            D/wq0.0/size = 16
            R/idxd/bind = dsa0 ! ENXIO
            D/dsa0/cmd_status ? 0x800c0000
            # No engine in the queue's group.
            D/wq0.0/type = user
            R/idxd/bind = dsa0 ! ENXIO
            D/dsa0/state ? disabled
            D/engine0.0/group_id = 0
            R/idxd/bind = dsa0
            D/dsa0/state ? enabled
            D/dsa0/driver -> /idxd
            # Bound already.
            R/idxd/bind = dsa0 ! EBUSY
            # A queue without group, name, threshold, priority, in the order in which the driver looks.
            D/wq0.1/driver_name = user
            R/user/bind = wq0.1 ! ENXIO
            D/dsa0/cmd_status ? 0x80030000
            D/wq0.0/driver_name = user
            R/user/bind = wq0.0 ! ENXIO
            D/dsa0/cmd_status ? 0x80040000
            D/wq0.0/name = a
            R/user/bind = wq0.0 ! ENXIO
            D/dsa0/cmd_status ? 0x80060000
            D/wq0.0/threshold = 15
            # The device itself refuses a priority of 0.
            R/user/bind = wq0.0 ! ENXIO
            D/dsa0/cmd_status ? 0x23
            D/wq0.0/state ? disabled
            D/wq0.0/priority = 10
            R/user/bind = wq0.0
            D/wq0.0/state ? enabled
            D/wq0.0/driver -> /user
            D/wq0.0/cdev_minor ~ \d+
            "#,
        );
    }

    fn enabled_devices_and_queues_keep_their_configuration(view: View) {
        if !ready("enabled_devices_and_queues_keep_their_configuration") {
            return;
        }
        let enabled = format!("{HALF}\n R/idxd/bind = dsa0\n R/user/bind = wq0.0\n");
        Run::new(view).with("--abi").with("6.12").attributes(&(enabled + r#"
            D/wq0.0/group_id = 1 ! EPERM
            D/wq0.0/mode = shared ! EPERM
            D/wq0.0/size = 17 ! EPERM
            D/wq0.1/size = 17 ! EPERM
            D/wq0.0/priority = 9 ! EPERM
            D/wq0.0/type = kernel ! EPERM
            D/wq0.0/name = b ! EPERM
            D/wq0.0/driver_name = dmaengine ! EPERM
            D/wq0.0/max_transfer_size = 4096 ! EPERM
            D/wq0.0/max_batch_size = 16 ! EPERM
            D/wq0.0/block_on_fault = 1 ! ENXIO
            D/dsa0/read_buffer_limit = 1 ! EPERM
            D/group0.0/read_buffers_reserved = 1 ! EPERM
            D/group0.0/read_buffers_allowed = 20 ! EPERM
            D/group0.0/use_read_buffer_limit = 1 ! EPERM
            D/wq0.0/name ? a
            R/user/unbind = wq0.0
            # Forgotten: mode, threshold, priority, name, type; kept: size, group, driver's name.
            D/wq0.0/state ? disabled
            D/wq0.0/mode ? shared
            D/wq0.0/priority ? 0
            D/wq0.0/type ? none
            D/wq0.0/name ?
            D/wq0.0/size ? 16
            D/wq0.0/group_id ? 0
            D/wq0.0/driver_name ? user
            R/idxd/unbind = dsa0
            D/dsa0/state ? disabled
            D/wq0.0/size ? 0
            D/wq0.0/group_id ? -1
            D/engine0.0/group_id ? -1
            "#));
    }

    fn unbinding_a_device_disables_its_queues(view: View) {
        if !ready("unbinding_a_device_disables_its_queues") {
            return;
        }
        Run::on_two_queues(view).attributes(
            r#"
            D/wq0.0/state ? enabled
            D/wq0.1/state ? enabled
            R/idxd/unbind = dsa0
            D/dsa0/state ? disabled
            D/wq0.0/state ? disabled
            D/wq0.1/state ? disabled
            /dev/dsa/wq0.0 ? ! ENOENT
            D/wq0.0/driver/unbind ? ! ENOENT
            "#,
        );
    }
}
