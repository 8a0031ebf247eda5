//! `status --models`: lists the files that have models of their pages, or wait for one.

use pagefold_server::control::{Client, ModelFigures, Reply, Request};
use pagefold_server::failure::Result;
use pagefold_server::{models, pools, units};
use serde_json::json;

use super::show::{SHOWN, named_pools};
use crate::args::{Output, Status};
use crate::failures::Failures;
use crate::table::{Align, Table, printable};
use crate::target;

/// Prints the models, pool by pool.
pub fn status(args: &Status) -> Result<()> {
    let mut failures = Failures::new();
    let names = named_pools(&args.targets, &mut failures)?;
    let mut all: Vec<(String, Vec<ModelFigures>)> = Vec::new();
    for name in names {
        if let Some(models) = failures.take(&name, of_pool(&name)) {
            all.push((name, models));
        }
    }
    if args.output.json {
        let pools: Vec<_> =
            all.iter().map(|(name, models)| json!({ "name": name, "models": models })).collect();
        super::print_json(&json!({ "pools": pools, "failures": failures.json() }))?;
    } else {
        print(&all, args.output);
    }
    failures.finish(args.targets.len(), SHOWN)
}

/// Asks the pool's server, or reads the pool itself if it has none.
fn of_pool(pool: &str) -> Result<Vec<ModelFigures>> {
    let ask = |client: &mut Client| match client.ask(&Request::Models {})? {
        Reply::Models { all } => Ok(all),
        _ => Err(client.misunderstood()),
    };
    target::ask_or_look(pool, ask, |known| models::figures(&*pools::open_briefly(known, true)?))
}

/// Prints files with a model or whose turn it is, those with most pages first; of the others, it prints their number.
/// Scripts get all.
fn print(all: &[(String, Vec<ModelFigures>)], output: Output) {
    let is_told = |model: &&ModelFigures| output.script || model.model.is_some() || model.waits;
    let mut told: Vec<&ModelFigures> = all.iter().flat_map(|(_, models)| models).filter(is_told).collect();
    told.sort_by(|a, b| b.pages.cmp(&a.pages).then_with(|| a.file.cmp(&b.file)));
    let mut table = Table::new(&[
        ("FILE", Align::Left),
        ("PAGES", Align::Right),
        ("CODEC", Align::Left),
        ("MODEL", Align::Right),
        ("LEARNED", Align::Right),
        ("FROM", Align::Right),
        ("CODED", Align::Right),
        ("BYTES/PAGE", Align::Right),
        ("OTHERS", Align::Right),
        ("STATE", Align::Left),
    ]);
    for model in &told {
        table.row(row(model, output));
    }
    if !told.is_empty() {
        table.print(output.script);
    }
    if output.script {
        return;
    }
    for (name, models) in all {
        if !models.iter().any(|model| is_told(&model)) {
            println!("pool {name} has no models yet");
        }
        let others: Vec<u64> =
            models.iter().filter(|model| !is_told(model)).map(|model| model.pages).collect();
        if !others.is_empty() {
            println!(
                "{name}: {} more files have pages of a database and no model yet, {} pages in all",
                others.len(),
                others.iter().sum::<u64>()
            );
        }
    }
}

fn row(model: &ModelFigures, output: Output) -> Vec<String> {
    let exact = output.exact || output.script;
    let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
    let none = || "-".to_owned();
    let known = |text: String| if model.model.is_some() { text } else { none() };
    // The mean is that of the pages that were coded since, or of those that the model was learned from.
    let mean = model.coded_bytes.checked_div(model.coded_pages).unwrap_or(model.record_bytes.into());
    let state = match (model.model, model.waits) {
        (None, false) => "no model yet",
        (_, true) => "codes again",
        (Some(_), false) => "done",
    };
    vec![
        printable(&model.file),
        model.pages.to_string(),
        model.codec.clone().unwrap_or_else(none),
        known(size(model.model_bytes)),
        known(model.learned.to_string()),
        known(format!("{}/{}", model.sampled_pages, model.learned_pages)),
        known(model.coded_pages.to_string()),
        known(mean.to_string()),
        model.other_pages.to_string(),
        state.into(),
    ]
}
