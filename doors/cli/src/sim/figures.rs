//! `telpher sim figures`: a folder with every figure's data, and one page with the charts.

use super::SimError;
use super::machine::elsewhere;
use crate::args::{Figures, Format};
use crate::log;
use std::path::Path;
use telpher_claims::figures::{Figure, Sheet, claims_without_figure, draw, page as report, sheets};
use telpher_report::machine::command;
use telpher_report::schema;

/// Draws and writes the figures, and prints the list.
pub(super) fn run(args: &Figures) -> Result<(), SimError> {
    let wanted = wanted(&args.only)?;
    args.printed.check()?;
    let machine = elsewhere(&args.elsewhere)?;
    // Before the simulation, so that a bad folder is reported at once.
    std::fs::create_dir_all(&args.folder).map_err(|source| failed(&args.folder, source))?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    log::info(|| format!("{} figures into {}, by {threads} threads", wanted.len(), args.folder.display()));
    let figures = draw(&wanted, threads, machine.as_ref())?;
    for figure in &figures {
        let id = figure.sheet.id;
        write(&args.folder.join(format!("{id}.csv")), &report::csv(std::slice::from_ref(figure)))?;
        write(&args.folder.join(format!("{id}.json")), &schema::SIM_FIGURE.pretty(&report::json(figure)))?;
    }
    if !args.no_html {
        let page = args.folder.join("index.html");
        let others = if args.only.is_empty() { claims_without_figure(machine.as_ref()) } else { Vec::new() };
        write(&page, &report::html(&figures, &others, &command(std::env::args())))?;
        eprintln!("Page: {}", page.display());
    }
    Ok(args.printed.write(printed(&figures, args.printed.format))?)
}

fn printed(figures: &[Figure], format: Format) -> String {
    match format {
        Format::Table => report::text(figures),
        Format::Csv => report::csv(figures),
        Format::Json => {
            let figures: Vec<_> = figures.iter().map(report::json).collect();
            schema::SIM_FIGURES.pretty(&schema::List { name: "figures", elements: &figures })
        }
    }
}

/// Returns the figures with this name or prefix.
fn wanted(only: &[String]) -> Result<Vec<&'static Sheet>, SimError> {
    let named = |sheet: &Sheet, name: &str| {
        let rest = sheet.id.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    if let Some(name) = only.iter().find(|name| !sheets().any(|sheet| named(sheet, name))) {
        let known: Vec<&str> = sheets().map(|sheet| sheet.id).collect();
        return Err(SimError::NoFigure { name: name.clone(), known: known.join(", ") });
    }
    Ok(sheets().filter(|sheet| only.is_empty() || only.iter().any(|name| named(sheet, name))).collect())
}

fn write(path: &Path, text: &str) -> Result<(), SimError> {
    telpher_os::write_file(path, text.as_bytes()).map_err(|source| failed(path, source))
}

fn failed(path: &Path, source: std::io::Error) -> SimError {
    SimError::Write { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{OtherMachine, Printed};

    #[test]
    fn a_figure_is_selected_by_name_or_by_a_common_prefix() {
        let ids = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(ToString::to_string).collect();
            wanted(&only).map(|sheets| sheets.iter().map(|sheet| sheet.id).collect::<Vec<_>>())
        };
        assert_eq!(ids(&["asplos-3", "asplos-8"]).unwrap(), ["asplos-3", "asplos-8"]);
        assert!(ids(&["asplos"]).unwrap().len() > 5);
        assert_eq!(ids(&[]).unwrap().len(), sheets().count());
        let error = ids(&["asplos-1"]).unwrap_err().to_string();
        assert!(error.contains("'asplos-1' is no figure") && error.contains("asplos-10"), "{error}");
    }

    #[test]
    fn a_folder_gets_two_files_for_each_figure_and_a_page() {
        let out = std::env::temp_dir().join(format!("telpher-figures-{}", std::process::id()));
        let only = vec!["asplos-8".to_owned(), "asplos-5".to_owned()];
        let printed = Printed { format: Format::Table, output: None };
        let elsewhere = OtherMachine { profile: None, set: Vec::new() };
        let mut args = Figures { elsewhere, only, folder: out.clone(), no_html: true, printed };
        run(&args).unwrap();
        assert!(!out.join("index.html").exists());
        args.no_html = false;
        run(&args).unwrap();
        let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
        for id in ["asplos-5", "asplos-8"] {
            let json: serde_json::Value = serde_json::from_str(&read(&format!("{id}.json"))).unwrap();
            assert_eq!((json["simulated"].as_bool(), json["figure"].as_str()), (Some(true), Some(id)));
            assert_eq!(json["schema"], "telpher.sim-figure/1");
            assert!(read(&format!("{id}.csv")).contains("simulated,spr-asplos ("));
            assert!(read("index.html").contains(id));
        }
        std::fs::remove_dir_all(&out).unwrap();
        // A file has the folder's name.
        std::fs::write(&out, "").unwrap();
        let error = run(&args).unwrap_err().to_string();
        std::fs::remove_file(&out).unwrap();
        assert!(error.contains("name another place"), "{error}");
    }
}
