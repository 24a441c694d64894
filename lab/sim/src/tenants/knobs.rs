//! The settings that limit interference, a table row each.

use super::plan::{GroupPlan, QueuePlan, SharingPlan};
use super::tenant::{Tenant, Tenants};
use telpher_device::Capabilities;

/// What a setting belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Per {
    /// The plan.
    Plan,
    /// A group.
    Group,
    /// A tenant's queue.
    Queue,
}

/// What choices depend on.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) capabilities: &'a Capabilities,
    pub(super) tenants: &'a Tenants,
}

/// Plans that differ from a plan in one setting; the driver's default first.
type Choices = fn(Context<'_>, &SharingPlan, usize) -> Vec<SharingPlan>;

/// A setting with its choices.
pub(super) struct Knob {
    /// Its name.
    pub(super) what: &'static str,
    /// What it does.
    pub(super) why: &'static str,
    pub(super) per: Per,
    pub(super) choices: Choices,
    /// The setting of a plan in words.
    pub(super) describe: fn(Context<'_>, &SharingPlan, usize) -> String,
}

/// Parts of all read buffers that a group may use, or has reserved, in per cent. Source: chosen.
const ALLOWED: [u32; 5] = [75, 50, 25, 12, 6];
const RESERVED: [u32; 3] = [25, 50, 75];
/// Priorities besides the default, the highest and the lowest among them. Source: a field of four bits, not 0.
const PRIORITIES: [u32; 4] = [15, 5, 2, 1];
/// Sizes of transfers, each a quarter of the one before. Source: chosen; below 4 KiB a device is slower.
const TRANSFERS: [u64; 5] = [1 << 20, 256 << 10, 64 << 10, 16 << 10, 4 << 10];
/// Members of batches. Source: chosen.
const BATCHES: [u32; 4] = [16, 8, 4, 2];

pub(super) const KNOBS: &[Knob] = &[
    Knob {
        what: "place",
        why: "tenants of a group wait for each other's descriptors; groups of one device share its read buffers and \
              its rate; devices share only the memory",
        per: Per::Plan,
        choices: |context, plan, _| {
            let mut plans = vec![SharingPlan::plain(context.tenants)];
            for on_devices in [false, true] {
                for group_of in partitions(plan.group_of.len()) {
                    let groups = group_of.iter().max().map_or(0, |last| last + 1);
                    if !on_devices || groups <= context.tenants.devices {
                        plans.push(SharingPlan::placed(context.tenants, group_of, on_devices));
                    }
                }
            }
            // The settings of queues stay; those of groups belong to their place.
            plans.into_iter().map(|other| SharingPlan { queues: plan.queues.clone(), ..other }).collect()
        },
        describe: |context, plan, _| {
            if plan.groups.len() < 2 {
                return "all tenants in one group".into();
            }
            let names = |group: usize| -> Vec<&str> {
                plan.members(group).map(|tenant| context.tenants.tenants[tenant].work.name.as_str()).collect()
            };
            let groups: Vec<String> = (0..plan.groups.len()).map(|group| names(group).join(" and ")).collect();
            let what = if plan.on_devices { "one device each" } else { "one group each" };
            format!("{what}: {}", groups.join("; "))
        },
    },
    Knob {
        what: "engines",
        why: "more engines of a group take more of the device's rate, and leave the other groups fewer",
        per: Per::Group,
        choices: |context, plan, group| {
            let mut plans = vec![with_group(plan, group, |group| group.engines = None)];
            if shares_a_device(plan) {
                let all = u32::from(context.capabilities.eng_cap.engines());
                plans.extend((1..all).map(|count| with_group(plan, group, |group| group.engines = Some(count))));
            }
            plans
        },
        describe: |context, plan, group| plan.engines(group, context.capabilities).to_string(),
    },
    Knob {
        what: "read buffers reserved",
        why: "no other group uses them, so that the group's reads need not wait",
        per: Per::Group,
        choices: |context, plan, group| {
            let mut plans = vec![with_group(plan, group, |group| group.reserved = 0)];
            if shares_a_device(plan) && has_bound(context, plan, group) {
                let reserve = |part| with_group(plan, group, |group| group.reserved = buffers(context, part));
                plans.extend(RESERVED.map(reserve));
            }
            plans
        },
        describe: |_, plan, group| plan.groups[group].reserved.to_string(),
    },
    Knob {
        what: "read buffers allowed",
        why: "fewer bytes of the group are in flight before those of the others",
        per: Per::Group,
        choices: |context, plan, group| {
            let mut plans = vec![with_group(plan, group, |group| group.allowed = None)];
            if shares_a_device(plan) && !has_bound(context, plan, group) {
                let allow = |part| with_group(plan, group, |group| group.allowed = Some(buffers(context, part)));
                plans.extend(ALLOWED.map(allow));
            }
            plans
        },
        describe: |_, plan, group| {
            plan.groups[group].allowed.map_or("all that are not reserved".into(), |allowed| allowed.to_string())
        },
    },
    Knob {
        what: "priority",
        why: "an engine takes as many descriptors of a queue in turn, before those of the group's other queues",
        per: Per::Queue,
        choices: |context, plan, tenant| {
            let default = SharingPlan::plain(context.tenants).queues[tenant].priority;
            let mut plans = vec![with_queue(plan, tenant, |queue| queue.priority = default)];
            if plan.members(plan.group_of[tenant]).count() > 1 {
                plans.extend(PRIORITIES.map(|priority| with_queue(plan, tenant, |queue| queue.priority = priority)));
            }
            plans
        },
        describe: |_, plan, tenant| plan.queues[tenant].priority.to_string(),
    },
    Knob {
        what: "largest transfer",
        why: "the others wait for shorter transfers; the tenant submits longer operations in pieces",
        per: Per::Queue,
        choices: |context, plan, tenant| {
            let default = SharingPlan::plain(context.tenants).queues[tenant].most_transfer;
            let mut plans = vec![with_queue(plan, tenant, |queue| queue.most_transfer = default)];
            let Tenant { work, bound, .. } = &context.tenants.tenants[tenant];
            let shorter = TRANSFERS.into_iter().filter(|size| *size < u64::from(work.size) && !bound.is_set());
            plans.extend(shorter.map(|size| with_queue(plan, tenant, |queue| queue.most_transfer = size)));
            plans
        },
        describe: |_, plan, tenant| telpher_os::size(plan.queues[tenant].most_transfer),
    },
    Knob {
        what: "largest batch",
        why: "the others wait for shorter batches; the tenant submits more of them",
        per: Per::Queue,
        choices: |context, plan, tenant| {
            let default = SharingPlan::plain(context.tenants).queues[tenant].most_batch;
            let mut plans = vec![with_queue(plan, tenant, |queue| queue.most_batch = default)];
            let Tenant { batch, bound, .. } = &context.tenants.tenants[tenant];
            let shorter = BATCHES.into_iter().filter(|most| most < batch && !bound.is_set());
            plans.extend(shorter.map(|most| with_queue(plan, tenant, |queue| queue.most_batch = most)));
            plans
        },
        describe: |_, plan, tenant| plan.queues[tenant].most_batch.to_string(),
    },
];

/// Groups of tenants: each in one of its own, or one tenant in one and the rest in another.
fn partitions(tenants: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::new();
    if tenants > 1 {
        all.push((0..tenants).collect());
    }
    if tenants > 2 {
        let apart = |one: usize| (0..tenants).map(|tenant| usize::from((tenant == one) != (one == 0))).collect();
        all.extend((0..tenants).map(apart));
    }
    all
}

fn shares_a_device(plan: &SharingPlan) -> bool {
    plan.groups.len() > 1 && !plan.on_devices
}

/// True if a tenant of a group has a bound.
fn has_bound(context: Context<'_>, plan: &SharingPlan, group: usize) -> bool {
    plan.members(group).any(|tenant| context.tenants.tenants[tenant].bound.is_set())
}

/// A part of all read buffers, in per cent.
fn buffers(context: Context<'_>, part: u32) -> u32 {
    u32::from(context.capabilities.grp_cap.read_buffers()) * part / 100
}

fn with_group(plan: &SharingPlan, group: usize, change: impl FnOnce(&mut GroupPlan)) -> SharingPlan {
    let mut plan = plan.clone();
    change(&mut plan.groups[group]);
    plan
}

fn with_queue(plan: &SharingPlan, tenant: usize, change: impl FnOnce(&mut QueuePlan)) -> SharingPlan {
    let mut plan = plan.clone();
    change(&mut plan.queues[tenant]);
    plan
}
