//! Tenants as terminal text, CSV and an HTML page. `json` is the configuration in the format of accel-config.

use super::{ChoiceNumbers, SharingResult, TenantNumbers, Throughput};
use std::fmt::Write as _;
use telpher_report::html::Page;
use telpher_report::table::{Align, Table, hanging};
use telpher_report::units;

/// The columns of a tenant's row.
const COLUMNS: [&str; 7] = ["tenant", "GB/s", "p99", "limits", "kept", "alone", "loss"];

/// Returns the tenants with their bounds, and each setting with the plan without it.
#[must_use]
pub fn text(result: &SharingResult, json: &str) -> String {
    let mut out = result.about.heading();
    out.push_str(&hanging("", 0, &verdict(result)));
    let _ = write!(out, "\n{}", tenants(&result.tenants));
    if let Some(advice) = &result.advice {
        let _ = write!(out, "\nWith the defaults, in one group of one device:\n\n{}", tenants(&advice.by_default));
        out.push('\n');
        let mut table = Table::new(&[("setting", Align::Left), ("advised", Align::Left), ("default", Align::Left)]);
        for choice in &advice.choices {
            table.row([choice.what.clone(), choice.chosen.clone(), choice.default.clone()]);
            table.below(&format!("without it: {}", without(result, choice)));
        }
        if !advice.choices.is_empty() {
            let _ = writeln!(out, "{table}");
        }
        for choice in distinct(&advice.choices) {
            out.push_str(&hanging(&format!("  {}", name(choice)), 26, choice.why));
        }
        let _ = write!(out, "\nFor accel-config load-config -e -c FILE (--config FILE writes it):\n{json}\n");
    }
    out
}

fn verdict(result: &SharingResult) -> String {
    let plans = result.advice.as_ref().map_or(String::new(), |advice| {
        format!(
            " {} plans were simulated; of those that keep all limits this one has the best throughput.",
            advice.simulated_plans
        )
    });
    match (result.keeps, &result.advice) {
        (true, _) => format!("The limits of all tenants hold.{plans}"),
        (false, None) => "The limits of a tenant do not hold.".into(),
        (false, Some(advice)) => format!(
            "No plan of {} keeps the limits of all tenants. This one exceeds them by least: raise a limit, lower a \
             tenant's rate or size, or allow more devices.",
            advice.simulated_plans
        ),
    }
}

fn limits(tenant: &TenantNumbers) -> String {
    let p99 = tenant.p99_limit_ns.map(|ns| format!("p99 {}", units::time(ns)));
    let loss = tenant.loss_limit_percent.map(|percent| format!("loss {} %", units::three(percent)));
    let all: Vec<String> = p99.into_iter().chain(loss).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

fn cells(tenant: &TenantNumbers) -> [String; 7] {
    let has_limits = tenant.p99_limit_ns.is_some() || tenant.loss_limit_percent.is_some();
    [
        tenant.name.clone(),
        units::three(tenant.beside.bytes_per_s / 1e9),
        units::time_or_none(tenant.beside.p99_ns),
        limits(tenant),
        match (has_limits, tenant.keeps) {
            (false, _) => String::new(),
            (true, true) => "yes".into(),
            (true, false) => "no".into(),
        },
        units::three(tenant.alone.bytes_per_s / 1e9),
        format!("{:.1} %", tenant.loss_percent),
    ]
}

fn tenants(tenants: &[TenantNumbers]) -> Table {
    let align = |name: &&'static str| {
        (*name, if ["tenant", "limits", "kept"].contains(name) { Align::Left } else { Align::Right })
    };
    let mut table = Table::new(&COLUMNS.each_ref().map(align));
    tenants.iter().for_each(|tenant| table.row(cells(tenant)));
    table
}

/// What the tenants have without a setting.
fn without(result: &SharingResult, choice: &ChoiceNumbers) -> String {
    if choice.without.is_empty() {
        return "not possible with the other settings".into();
    }
    let of = |(tenant, has): (&TenantNumbers, &Throughput)| {
        let (rate, p99) = (units::rate(has.bytes_per_s), units::time_or_none(has.p99_ns));
        format!("{} {rate}, p99 {p99}", tenant.name)
    };
    let all: Vec<String> = result.tenants.iter().zip(&choice.without).map(of).collect();
    let kept = if choice.keeps_without { "the limits hold, too" } else { "a limit does not hold" };
    format!("{} ({kept}). {}", all.join("; "), cost(result, choice))
}

/// Less of a tenant's throughput is rounded away, in per cent.
const LEAST_COST: f64 = 0.5;

/// What a setting costs the tenants, as a sentence.
fn cost(result: &SharingResult, choice: &ChoiceNumbers) -> String {
    let costs = result.tenants.iter().zip(&choice.costs_percent).filter(|(_, percent)| **percent >= LEAST_COST);
    let all: Vec<String> = costs.map(|(tenant, percent)| format!("{} {percent:.0} %", tenant.name)).collect();
    if all.is_empty() {
        return "It costs no tenant throughput.".into();
    }
    format!("It costs {} of the throughput.", all.join(" and "))
}

/// The name of a setting, without its tenants.
fn name(choice: &ChoiceNumbers) -> &str {
    choice.what.split(" of ").next().unwrap_or_default()
}

/// One choice of each setting.
fn distinct(choices: &[ChoiceNumbers]) -> impl Iterator<Item = &ChoiceNumbers> {
    let first = |at: &usize| choices[..*at].iter().all(|earlier| name(earlier) != name(&choices[*at]));
    (0..choices.len()).filter(first).map(|at| &choices[at]).collect::<Vec<_>>().into_iter()
}

/// Returns the HTML report.
#[must_use]
pub fn html(result: &SharingResult, json: &str) -> String {
    let mut page = Page::with_facts(
        "telpher tenants",
        "How tenants share devices, on the machine that the profile describes. Everything was simulated; nothing was \
         measured.",
        &result.about.facts(),
        &[],
    );
    let header = COLUMNS.map(String::from);
    let rows = |tenants: &[TenantNumbers]| tenants.iter().map(|tenant| cells(tenant).to_vec()).collect::<Vec<_>>();
    page.section("Tenants", &verdict(result));
    page.table(&header, rows(&result.tenants).into_iter());
    if let Some(advice) = &result.advice {
        page.section("With the defaults", "All tenants in one group of one device.");
        page.table(&header, rows(&advice.by_default).into_iter());
        page.section("Settings", "What differs from the defaults, and the same plan without it.");
        let of = |choice: &ChoiceNumbers| {
            let (what, chosen, default) = (choice.what.clone(), choice.chosen.clone(), choice.default.clone());
            vec![what, chosen, default, without(result, choice), choice.why.to_owned()]
        };
        page.sentences(&["setting", "advised", "default", "without it", "meaning"], advice.choices.iter().map(of));
        page.section("Configuration", "A file for accel-config load-config -e -c FILE.");
        page.listing(json);
    }
    page.finish()
}

/// One line for each tenant, as it is, with the defaults, and without each setting.
#[must_use]
pub fn csv(result: &SharingResult) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut out =
        String::from("simulated,profile,profile_hash,plan,tenant,gb_per_s,p99_ns,p99_limit_ns,loss_limit_percent\n");
    let mut line = |plan: &str, tenant: &TenantNumbers, has: &Throughput| {
        let _ = writeln!(
            out,
            "yes,{},{},{},{},{:.4},{},{},{}",
            quoted(&result.about.profile),
            result.about.profile_hash,
            quoted(plan),
            quoted(&tenant.name),
            has.bytes_per_s / 1e9,
            units::field(has.p99_ns, 1),
            units::field(tenant.p99_limit_ns, 1),
            units::field(tenant.loss_limit_percent, 1),
        );
    };
    result.tenants.iter().for_each(|tenant| line("beside", tenant, &tenant.beside));
    result.tenants.iter().for_each(|tenant| line("alone", tenant, &tenant.alone));
    for advice in &result.advice {
        advice.by_default.iter().for_each(|tenant| line("defaults", tenant, &tenant.beside));
        for choice in &advice.choices {
            let plan = format!("without {}", choice.what);
            result.tenants.iter().zip(&choice.without).for_each(|(tenant, has)| line(&plan, tenant, has));
        }
    }
    out
}
