//! Prints tables without borders, with numbers to the right and words to the left; or with tabs for scripts.

use std::io::IsTerminal;

use comfy_table::{CellAlignment, ContentArrangement, Table as Grid, presets};
use pagefold_server::raw;
pub use pagefold_server::raw::printable;

/// Alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// To the left, for words.
    Left,
    /// To the right, for numbers.
    Right,
}

/// A table that is collected first and printed at once.
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these column headings.
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row: one text per column.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Returns the table as text. With `script`, leaves the heading out and separates cells by one tab.
    pub fn render(&self, script: bool) -> String {
        if script {
            let line = |row: &Vec<String>| {
                row.iter().map(|cell| raw::escaped(cell)).collect::<Vec<_>>().join("\t") + "\n"
            };
            return self.rows.iter().map(line).collect();
        }
        let mut grid = Grid::new();
        grid.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        grid.set_header(self.columns.iter().map(|(name, _)| *name));
        for row in &self.rows {
            grid.add_row(row.iter().map(|cell| printable(cell)));
        }
        for (index, (_, align)) in self.columns.iter().enumerate() {
            if let Some(column) = grid.column_mut(index) {
                let right = *align == Align::Right;
                column.set_cell_alignment(if right { CellAlignment::Right } else { CellAlignment::Left });
                column.set_padding((0, 2));
            }
        }
        grid.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    /// Prints the table to standard output.
    pub fn print(&self, script: bool) {
        print!("{}", self.render(script));
    }
}

/// Number of columns that every terminal has: the width of help and manual text.
pub const COLUMNS: usize = 80;

/// Breaks running text into lines of a readable width, each indented.
pub fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent + line.len() + 1 + word.len() > COLUMNS {
            lines.push_str(&format!("{:indent$}{line}\n", ""));
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines + &format!("{:indent$}{line}\n", "")
}

/// Colours the name of a state, if the terminal wants colour.
pub fn state(state: &str) -> String {
    let colour = match state {
        "ONLINE" | "MOUNTED" | "clean" => "32",
        "DEGRADED" | "CRASHED" | "INUSE" => "33",
        "FAULTED" | "RESCUE" | "UNAVAIL" | "SILENT" => "31",
        _ => return state.to_owned(),
    };
    paint(state, colour)
}

/// Wraps `text` in an escape sequence if standard output is a terminal that wants colour.
fn paint(text: &str, code: &str) -> String {
    if wants_colour() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Returns true if standard output is a terminal, and the user has not refused colour (<https://no-color.org>).
fn wants_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !refused && !dumb && std::io::stdout().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(&[("NAME", Align::Left), ("SIZE", Align::Right)]);
        table.row(vec!["tank".into(), "1.00G".into()]);
        table.row(vec!["a-longer-name".into(), "5B".into()]);
        table
    }

    #[test]
    fn numbers_stand_to_the_right() {
        assert_eq!(
            sample().render(false),
            "NAME            SIZE\ntank           1.00G\na-longer-name     5B\n"
        );
    }

    #[test]
    fn scripts_get_tabs_and_no_heading() {
        assert_eq!(sample().render(true), "tank\t1.00G\na-longer-name\t5B\n");
    }

    #[test]
    fn text_is_wrapped_between_words() {
        let text = wrapped(&"word ".repeat(40), 4);
        assert!(text.lines().all(|line| line.len() <= COLUMNS && line.starts_with("    word")), "{text}");
        assert_eq!(text.split_whitespace().count(), 40);
    }

    #[test]
    fn control_characters_are_shown_not_sent() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\\x1b[2Jb\\n");
        assert_eq!(printable("a\u{202e}bü"), "a\\u{202e}bü");
        let mut table = Table::new(&[("NAME", Align::Left), ("SIZE", Align::Right)]);
        table.row(vec!["a\tb\n\x1b[1m".into(), "5B".into()]);
        assert_eq!(table.render(true), "a\\tb\\n\\x1b[1m\t5B\n");
    }
}
