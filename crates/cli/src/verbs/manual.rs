//! `completion` and `man`: both from the definition of the command line.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::failure::{Context, Result};

/// Prints a completion script.
pub fn completion(shell: Shell) -> Result<()> {
    // Into memory first: a closed pipe must not become a panic of the generator.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pagefold", &mut script);
    io::Write::write_all(&mut io::stdout(), &script).context(|| "cannot print".into())
}

/// Writes `pagefold.8` and a page for every verb into `dir`.
pub fn write(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).context(|| format!("cannot create {}", dir.display()))?;
    let root = Cli::command();
    let version = env!("CARGO_PKG_VERSION");
    for verb in root.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let title = format!("pagefold-{}", verb.get_name());
        let typed = format!("pagefold {}", verb.get_name());
        // Manual pages have their own name each; clap wants names that live as long as the program.
        let page = verb.clone().name(title.clone().leak() as &'static str).bin_name(typed).version(version);
        for below in verb.get_subcommands() {
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
    Man::new(command)
        .section("8")
        .manual("Pagefold")
        .source(concat!("pagefold ", env!("CARGO_PKG_VERSION")))
        .render(&mut page)
        .context(|| format!("cannot make {}", path.display()))?;
    // Lines of examples and tables stay as they are.
    let page = String::from_utf8_lossy(&page)
        .replace(".SH EXTRA\n", ".SH \"DETAILS AND EXAMPLES\"\n.nf\n")
        .replace("\n.SH VERSION\n", "\n.fi\n.SH VERSION\n");
    fs::write(&path, page).context(|| format!("cannot write {}", path.display()))
}
