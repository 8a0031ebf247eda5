//! `completion` and `man`: both are made from the definition of the command line.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use pagefold_server::failure::{Context, Result};

use crate::args::Cli;
use crate::help::in_columns;

/// Date of the last revision of the pages, so that those of one version are the same whenever they are made.
const DATE: &str = "2026-11-24";

/// Prints a completion script.
pub fn completion(shell: Shell) -> Result<()> {
    // The script goes into memory first: a closed pipe must not make the generator panic.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pagefold", &mut script);
    io::Write::write_all(&mut io::stdout(), &script).context(|| "cannot print".into())
}

/// Writes `pagefold.8` and a page for every verb into `dir`.
pub fn write(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).context(|| format!("cannot create {}", dir.display()))?;
    let root = in_columns(Cli::command());
    let version = env!("CARGO_PKG_VERSION");
    for verb in root.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let title = format!("pagefold-{}", verb.get_name());
        let typed = format!("pagefold {}", verb.get_name());
        // Each manual page has a name of its own; clap wants names that live as long as the program.
        let page = verb.clone().name(title.clone().leak() as &'static str).bin_name(typed).version(version);
        for below in verb.get_subcommands().filter(|below| !below.is_hide_set()) {
            let title = format!("{title}-{}", below.get_name());
            let typed = format!("pagefold {} {}", verb.get_name(), below.get_name());
            let page = below.clone().name(title.clone().leak() as &'static str).bin_name(typed);
            write_page(dir, &title, page.version(version))?;
        }
        write_page(dir, &title, page)?;
    }
    write_page(dir, "pagefold", root)
}

fn write_page(dir: &Path, title: &str, command: Command) -> Result<()> {
    let path = dir.join(format!("{title}.8"));
    let mut page = Vec::new();
    let synopsis = synopsis(&command);
    Man::new(command)
        .section("8")
        .date(DATE)
        .manual("Pagefold")
        .source(concat!("pagefold ", env!("CARGO_PKG_VERSION")))
        .render(&mut page)
        .context(|| format!("cannot make {}", path.display()))?;
    // Without filling (`.nf`), lines of examples and tables stay as they are.
    let page = String::from_utf8_lossy(&page)
        // This empty line is within a list.
        .replace(".br\n\n.br\n", ".br\n")
        .replace(".SH EXTRA\n", ".SH \"DETAILS AND EXAMPLES\"\n.nf\n")
        .replace("\n.SH VERSION\n", "\n.fi\n.SH VERSION\n");
    let page = with_synopsis(&page, &synopsis);
    fs::write(&path, page).context(|| format!("cannot write {}", path.display()))
}

/// Returns the page with another line below the heading SYNOPSIS, and without blanks at the ends of lines.
fn with_synopsis(page: &str, synopsis: &str) -> String {
    let mut done = String::with_capacity(page.len());
    let mut before = "";
    for line in page.lines() {
        let line = line.trim_end();
        done.push_str(if before == ".SH SYNOPSIS" { synopsis } else { line });
        done.push('\n');
        before = line;
    }
    done
}

/// Returns how a verb is called, with the values of its options, which the synopsis that clap makes leaves out.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut line = format!("\\fB{}\\fR", escaped(name));
    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    for arg in shown().filter(|arg| !arg.is_positional()) {
        let short = arg.get_short().map(|short| format!("\\fB\\-{short}\\fR"));
        let long = arg.get_long().map(|long| format!("\\fB\\-\\-{}\\fR", escaped(long)));
        let names: Vec<String> = short.into_iter().chain(long).collect();
        let several = if matches!(arg.get_action(), ArgAction::Append) { "..." } else { "" };
        line.push_str(&format!(" [{}{}]{several}", names.join("|"), value_of(arg)));
    }
    for arg in shown().filter(|arg| arg.is_positional()) {
        let value = value_of(arg);
        let value = value.trim_start();
        let several = if matches!(arg.get_action(), ArgAction::Append) { "..." } else { "" };
        line.push_str(&if arg.is_required_set() {
            format!(" {value}{several}")
        } else {
            format!(" [{value}{several}]")
        });
    }
    if command.has_subcommands() {
        line.push_str(" \\fICOMMAND\\fR");
    }
    line
}

/// Returns the value that an argument takes, behind a blank; empty if it takes none.
fn value_of(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let names = arg.get_value_names().unwrap_or_default();
    names.iter().map(|name| format!(" \\fI{}\\fR", escaped(name))).collect()
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}
