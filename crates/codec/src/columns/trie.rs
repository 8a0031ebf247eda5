//! Phrases by their bytes: a double array, one load per byte.

use super::words::MAX_PHRASE;

/// A node's cell. The child by `byte` is at `base + byte`, if the cell there says `byte`: no two nodes have one base.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// The base times 256, plus the byte that leads here.
    base_byte: u32,
    /// Place plus one of the phrase that stops here.
    stop: u16,
    /// Place plus one of the phrase that ends a value here.
    end: u16,
}

/// Finds the longest phrase at the beginning of a text.
#[derive(Clone, Debug)]
pub(super) struct Trie {
    cells: Vec<Cell>,
}

/// What is needed only while cells are filled.
#[derive(Default)]
struct Places {
    taken: Vec<bool>,
    bases: Vec<bool>,
    first_free: usize,
}

impl Places {
    fn is_free(&self, at: usize) -> bool {
        !self.taken.get(at).copied().unwrap_or(false)
    }

    /// A base of its own for which all cells of `children` are free.
    fn take(&mut self, children: &[(u8, usize)]) -> usize {
        while !self.is_free(self.first_free) {
            self.first_free += 1;
        }
        let lowest = children.iter().map(|(byte, _)| usize::from(*byte)).min().unwrap_or(0);
        let begin = self.first_free.saturating_sub(lowest).max(1);
        let suits = |base: &usize| {
            !self.bases.get(*base).copied().unwrap_or(false)
                && children.iter().all(|(byte, _)| self.is_free(base + usize::from(*byte)))
        };
        let base = (begin..begin + TRIES).find(suits).unwrap_or(self.taken.len().max(self.bases.len()));
        if self.taken.len() < base + 256 {
            self.taken.resize(base + 256, false);
            self.bases.resize(base + 256, false);
        }
        self.bases[base] = true;
        for (byte, _) in children {
            self.taken[base + usize::from(*byte)] = true;
        }
        base
    }
}

/// After so many cells that do not suit, a node's children are placed behind all others.
const TRIES: usize = 48;

/// A node while the trie is built.
#[derive(Default)]
struct Node {
    children: Vec<(u8, usize)>,
    stop: u16,
    end: u16,
}

impl Trie {
    /// Of phrases: bytes, at most [`MAX_PHRASE`], and whether they end a value. Their order gives their places.
    pub(super) fn new(phrases: &[(Vec<u8>, bool)]) -> Self {
        let mut nodes = vec![Node::default()];
        for (place, (bytes, ends)) in phrases.iter().enumerate() {
            let mut node = 0;
            for &byte in bytes {
                node = match nodes[node].children.iter().find(|(b, _)| *b == byte) {
                    Some(&(_, child)) => child,
                    None => {
                        let child = nodes.len();
                        nodes.push(Node::default());
                        nodes[node].children.push((byte, child));
                        child
                    }
                };
            }
            let mark = if *ends { &mut nodes[node].end } else { &mut nodes[node].stop };
            *mark = place as u16 + 1;
        }
        let mut cells = vec![Cell { base_byte: 0, stop: nodes[0].stop, end: nodes[0].end }];
        let mut places = Places { taken: vec![true], bases: vec![true], first_free: 1 };
        let mut todo = vec![(0, 0)];
        while let Some((node, at)) = todo.pop() {
            let children = &nodes[node].children;
            if children.is_empty() {
                continue;
            }
            let base = places.take(children);
            cells.resize(cells.len().max(base + 256), Cell::default());
            cells[at].base_byte |= (base as u32) << 8;
            for &(byte, child) in children {
                let to = base + usize::from(byte);
                let Node { stop, end, .. } = nodes[child];
                cells[to] = Cell { base_byte: u32::from(byte), stop, end };
                todo.push((child, to));
            }
        }
        Self { cells }
    }

    /// The phrase that takes most of `rest`, which is a value's end: its place and how many bytes it takes.
    #[inline(always)]
    pub(super) fn longest(&self, rest: &[u8]) -> Option<(usize, usize)> {
        let mut cell = self.cells[0];
        let (mut best, mut best_len) = (0, 0);
        for (i, &byte) in rest.iter().take(MAX_PHRASE).enumerate() {
            let to = (cell.base_byte >> 8) as usize + usize::from(byte);
            let next = self.cells.get(to).copied().unwrap_or_default();
            // A leaf's base is 0: cells from there on are those of no byte, or of the root's children.
            if next.base_byte as u8 != byte || cell.base_byte < 256 || to == 0 {
                return (best > 0).then(|| (usize::from(best) - 1, best_len));
            }
            cell = next;
            if cell.stop > 0 {
                (best, best_len) = (cell.stop, i + 1);
            }
        }
        if rest.len() <= MAX_PHRASE && cell.end > 0 {
            return Some((usize::from(cell.end) - 1, rest.len()));
        }
        (best > 0).then(|| (usize::from(best) - 1, best_len))
    }
}
