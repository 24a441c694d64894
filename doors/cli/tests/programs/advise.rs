//! accel-config loads the output of `telpher advise` and `telpher list` under each kernel.

use crate::harness::{TELPHER, lacking, test_folder};
use crate::plans::{FLAVOURS, fits, load, loads, on_two_threads, plans};
use std::process::Command;
use telpher_device::{Config, WqMode};

#[test]
fn each_plan_loads_under_one_kernel_and_every_kernel_loads_some() {
    if lacking("each_plan_loads_under_one_kernel_and_every_kernel_loads_some", &[("accel-config", "accel-config")]) {
        return;
    }
    let (room, plans) = (test_folder("advised"), plans(3));
    let mut loaded = [0; FLAVOURS.len()];
    // The kernel with the fewest plans so far, of those that can load this one.
    let kernel = |plan| {
        let can = (0..FLAVOURS.len()).filter(|flavour| fits(plan, FLAVOURS[*flavour]));
        let flavour = can.min_by_key(|flavour| loaded[*flavour]).expect("6.1 can have every plan");
        loaded[flavour] += 1;
        (plan, FLAVOURS[flavour])
    };
    let pairs: Vec<_> = plans.iter().map(Vec::as_slice).map(kernel).collect();
    let results = on_two_threads(&pairs, |number, (plan, flavour)| {
        loads(plan, &room.join(format!("plan-{number}.json")), flavour)
    });
    let wrong: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(plans.len() >= 6 && loaded.iter().all(|plans| *plans >= 1), "{} plans: {loaded:?}", plans.len());
    // Advice may need no shared queue at all.
    let shared = [Config::single(WqMode::Shared, 16, 1)];
    assert!(!fits(&shared, "5.15"));
    assert_eq!(loads(&shared, &room.join("shared.json"), "6.1"), Ok(()));
    let refused = loads(&shared, &room.join("shared.json"), "5.15").unwrap_err();
    assert!(refused.contains("kernel 5.15"), "{refused}");
}

#[test]
fn accel_config_loads_the_files_of_advise_and_list() {
    if lacking("accel_config_loads_the_files_of_advise_and_list", &[("accel-config", "accel-config")]) {
        return;
    }
    let room = test_folder("listed");
    let file = room.join("adv.json");
    let work = room.join("tenants.toml");
    let tenant =
        |name, size, more| format!("[[tenant]]\nname = \"{name}\"\nop = \"memory-move\"\nsize = \"{size}\"\n{more}\n");
    let tenants = tenant("requests", "1k", "rate = 500_000\np99_us = 4") + &tenant("bulk", "1m", "in_flight = 16");
    std::fs::write(&work, format!("devices = 1\n{tenants}")).expect("our own folder");
    let advised = Command::new(TELPHER).arg("advise").arg(&work).arg("--config").arg(&file).output();
    let advised = advised.expect("the binary runs");
    assert!(advised.status.success(), "{advised:?}");
    for flavour in FLAVOURS {
        let output = load(&file, 1, flavour);
        let enabled = String::from_utf8_lossy(&output.stdout).matches("enabled").count();
        assert!(output.status.success() && enabled == 2, "{flavour}: {output:?}");
    }
    let advised = Command::new(TELPHER).args(["advise", "--size", "4k", "--no-html", "--config"]).arg(&file).output();
    let advised = advised.expect("the binary runs");
    assert!(advised.status.success(), "{advised:?}");
    for flavour in FLAVOURS {
        let output = load(&file, 1, flavour);
        assert!(output.status.success(), "{flavour}: {output:?}");
    }
    for device in ["model:spr", "model:spr-fw2"] {
        let listed = Command::new(TELPHER).args(["list", "--format", "json", "--device", device]).output();
        std::fs::write(&file, listed.expect("the binary runs").stdout).expect("our own folder");
        // The model's default configuration has shared queues.
        for flavour in &FLAVOURS[1..] {
            let output = load(&file, 1, flavour);
            let enabled = String::from_utf8_lossy(&output.stdout).matches("enabled").count();
            assert!(output.status.success() && enabled == 8, "{device}, {flavour}: {output:?}");
        }
    }
}
