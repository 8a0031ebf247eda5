//! Formats help for terminals of 80 columns. The texts of the verbs are written in `args`, in lines of any length; here
//! their paragraphs are broken into lines that no terminal wraps again.

use std::fmt::Write as _;

use clap::Command;
use pagefold_server::mountopts;
use pagefold_server::props::PROPERTIES;

use crate::table::{self, COLUMNS};

/// Formats the help of a command and of all commands below it.
pub fn in_columns(command: Command) -> Command {
    let text = command.get_after_long_help().map(|text| wrapped(&text.to_string()));
    let command = match text {
        Some(text) => command.after_long_help(text),
        None => command,
    };
    command.max_term_width(COLUMNS).mut_subcommands(in_columns)
}

/// The verbs by what one wants to do, as `pagefold --help` lists them.
const TOPICS: [(&str, &[&str]); 8] = [
    ("Pools", &["create", "import", "export", "destroy", "reguid"]),
    ("Use", &["mount", "unmount", "restart", "sync", "systemd"]),
    ("See", &["list", "status", "df", "du", "iostat", "events", "analyze"]),
    (
        "Datasets, snapshots and branches",
        &[
            "dataset", "rename", "get", "set", "inherit", "snapshot", "policy", "hold", "release", "holds",
            "diff", "rollback", "clone", "promote", "rebase", "reset", "branch",
        ],
    ),
    ("Copies elsewhere", &["send", "receive", "backup", "archive", "replicate", "basebackup"]),
    ("Stored data", &["scrub", "check", "fold", "rewrite", "trim"]),
    (
        "Devices",
        &["add", "attach", "detach", "replace", "offline", "online", "remove", "balance", "split", "clear"],
    ),
    ("This program", &["completion", "help"]),
];

/// Has the help of the program list its verbs by topics.
pub fn by_topic(command: Command) -> Command {
    let mut lists = String::new();
    let mut built = command.clone();
    // Only then it has the verb `help`.
    built.build();
    for (topic, names) in TOPICS {
        let listed = names
            .iter()
            .enumerate()
            .filter_map(|(at, name)| Some(built.find_subcommand(name)?.clone().display_order(at)));
        // One of clap's own lists, so that it looks like all others.
        let mut topic = Command::new("topic")
            .subcommands(listed)
            .subcommand_help_heading(topic)
            .disable_help_subcommand(true)
            .disable_help_flag(true)
            .max_term_width(COLUMNS)
            .help_template("{all-args}");
        lists.push_str(&format!("\n{}", topic.render_help().ansi()));
    }
    let styles = command.get_styles().clone();
    let header = styles.get_header();
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{lists}\n{header}Options:{header:#}\n{{options}}{{after-help}}"
    ))
}

/// Breaks paragraphs into lines of at most [`COLUMNS`]; blocks of indented lines go through [`narrowed`]. A line that
/// ends with a colon ends its paragraph.
fn wrapped(text: &str) -> String {
    let (mut done, mut paragraph) = (String::new(), String::new());
    let mut block: Vec<&str> = Vec::new();
    for line in text.lines().chain([""]) {
        let indented = line.starts_with(' ');
        if !indented {
            done.push_str(&narrowed(&std::mem::take(&mut block)));
        }
        if !line.is_empty() && !indented {
            paragraph.push_str(line);
            paragraph.push(' ');
        }
        if (line.is_empty() || indented || line.ends_with(':')) && !paragraph.is_empty() {
            done.push_str(&table::wrapped(&std::mem::take(&mut paragraph), 0));
        }
        if indented {
            block.push(line);
        } else if line.is_empty() {
            done.push('\n');
        }
    }
    done.truncate(done.trim_end().len());
    done
}

/// Formats a block of examples with explanations behind them. If a line is too long, the second column of all lines
/// moves to the left; an explanation that is still too long goes to a line of its own.
fn narrowed(block: &[&str]) -> String {
    let columns = |line: &str| line.chars().count();
    if block.iter().all(|line| columns(line) <= COLUMNS) {
        return block.iter().map(|line| format!("{line}\n")).collect();
    }
    let split = |line: &str| {
        let command = line.trim_start();
        let indent = line.len() - command.len();
        command.find("   ").map(|at| (line[..indent + at].to_owned(), command[at..].trim_start().to_owned()))
    };
    let widest = block.iter().filter_map(|line| split(line)).map(|(command, _)| columns(&command)).max();
    let column = widest.unwrap_or_default() + 2;
    let one = |line: &&str| match split(line) {
        None => format!("{line}\n"),
        Some((command, what)) if column + columns(&what) <= COLUMNS => format!("{command:column$}{what}\n"),
        Some((command, what)) => format!("{command}\n{}", table::wrapped(&what, 6)),
    };
    block.iter().map(one).collect()
}

/// Returns the section of `mount --help` that lists the options.
pub fn mount_options() -> String {
    let mut text = String::new();
    for (option, doc) in mountopts::OWN {
        let doc = table::wrapped(doc, 26);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {option:<22}  {}", doc.trim());
    }
    text
}

/// Returns the section of the help that lists the properties.
pub fn properties() -> String {
    let mut text = String::from("Properties that can be set:\n");
    for property in PROPERTIES.iter().filter(|property| property.settable()) {
        let (name, values) = (property.name, property.values_text());
        let default = property.human(property.default);
        text.push_str(&table::wrapped(&format!("{name} = {values}"), 2));
        text.push_str(&table::wrapped(&format!("Default: {default}. {}", property.doc), 6));
    }
    text.push_str(
        "  NAME:WITH:COLON = any text\n      User properties: for you and your programs. Datasets below inherit them.\n",
    );
    text.push_str("\nComputed properties:\n");
    for property in PROPERTIES.iter().filter(|property| !property.settable()) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {}", property.name);
        text.push_str(&table::wrapped(property.doc, 6));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_lines(command: &Command, found: &mut Vec<String>) {
        let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        let long = text.lines().filter(|line| line.chars().count() > COLUMNS);
        found.extend(long.map(|line| format!("{}: {line}", command.get_name())));
        command.get_subcommands().for_each(|below| long_lines(below, found));
    }

    #[test]
    fn every_verb_has_one_topic() {
        let command = <crate::args::Cli as clap::CommandFactory>::command();
        let mut listed: Vec<&str> = TOPICS.iter().flat_map(|(_, names)| *names).copied().collect();
        let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set()).map(Command::get_name);
        let mut wanted: Vec<&str> = shown.chain(["help"]).collect();
        listed.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(listed, wanted);
    }

    #[test]
    fn no_line_of_any_verb_is_longer_than_a_terminal() {
        let mut found = Vec::new();
        long_lines(&in_columns(<crate::args::Cli as clap::CommandFactory>::command()), &mut found);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn paragraphs_are_wrapped_and_examples_are_not() {
        let text =
            format!("{}\n{}\n\nExamples:\n  pagefold list\n  {}", "word ".repeat(30), "more", "x".repeat(90));
        let seen = wrapped(&text);
        let lines: Vec<&str> = seen.lines().collect();
        assert!(lines.iter().all(|line| line.len() <= COLUMNS || line.starts_with("  x")), "{seen}");
        assert_eq!(lines[lines.len() - 4..lines.len() - 1], ["", "Examples:", "  pagefold list"]);
        assert!(lines[1].ends_with("more"), "{seen}");
    }

    #[test]
    fn examples_that_are_too_long_move_together() {
        let block = [
            "  a",
            &format!("  pagefold x{:40}what it does", ""),
            &format!("  long{:30}{}", "", "y".repeat(70)),
        ];
        let seen = wrapped(&block.join("\n"));
        assert_eq!(seen, format!("  a\n  pagefold x  what it does\n  long\n      {}", "y".repeat(70)));
    }
}
