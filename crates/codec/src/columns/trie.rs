//! Finds phrases by their bytes: a double array whose cells also hold the bytes that follow without a choice.

/// A node's cell. The child by `byte` is at `base + byte`, if the cell there has that `byte`: no two nodes share a
/// base.
#[derive(Clone, Copy, Debug, Default)]
struct TrieCell {
    /// The base times 256, plus the byte that leads here.
    base_byte: u32,
    /// Place plus one of the phrase that stops here.
    stop: u16,
    /// Place plus one of the phrase that ends a value here.
    end: u16,
    /// Up to 7 bytes that have to follow the byte; the highest byte is their number.
    tail: u64,
}

/// Largest number of bytes in a tail.
const TAIL: usize = 7;

/// A trie that finds the longest phrase at the beginning of a text.
#[derive(Clone, Debug)]
pub(super) struct Trie {
    cells: Vec<TrieCell>,
}

/// Finds bases, the nodes with most children first, so that others fill the gaps.
#[derive(Default)]
struct FreeCells {
    taken: Vec<bool>,
    bases: Vec<bool>,
    first_free: usize,
}

/// Number of bases, from the first free cell on, that are tried for a node's children.
const TRIES: usize = 1024;
/// Number of cells that are given up if no base suited a node.
const GIVE_UP: usize = 64;

impl FreeCells {
    fn is_free(&self, at: usize) -> bool {
        !self.taken.get(at).copied().unwrap_or(false)
    }

    /// Takes a base that no other node has, and for which all cells of `children` are free; returns it.
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
        let base = (begin..begin + TRIES).find(suits).unwrap_or_else(|| {
            self.first_free += GIVE_UP;
            self.taken.len().max(self.bases.len())
        });
        let end = children.iter().map(|(byte, _)| base + usize::from(*byte) + 1).max().unwrap_or(base + 1);
        self.taken.resize(self.taken.len().max(end), false);
        self.bases.resize(self.bases.len().max(base + 1), false);
        self.bases[base] = true;
        for (byte, _) in children {
            self.taken[base + usize::from(*byte)] = true;
        }
        base
    }
}

/// A node while the trie is built.
#[derive(Default)]
struct Node {
    children: Vec<(u8, usize)>,
    stop: u16,
    end: u16,
}

impl Trie {
    /// Makes a trie of phrases: their bytes, and whether they end a value. Their order gives their places.
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
        Self { cells: place(&nodes) }
    }

    /// Returns the bytes of memory that the trie takes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.cells)
    }

    /// Returns the phrase that takes most of `rest`, which goes to the end of a value: its place, and the number of
    /// bytes that it takes.
    #[inline(always)]
    pub(super) fn longest(&self, rest: &[u8]) -> Option<(usize, usize)> {
        let mut cell = self.cells[0];
        let (mut best, mut best_len, mut at) = (0, 0, 0);
        while let Some(&byte) = rest.get(at) {
            let to = (cell.base_byte >> 8) as usize + usize::from(byte);
            let next = self.cells.get(to).copied().unwrap_or_default();
            let len = (next.tail >> 56) as usize;
            // A leaf's base is 0: at that base are the cells of the root's children.
            let follows = next.base_byte as u8 == byte && cell.base_byte >= 256;
            if !follows || (len > 0 && !has_tail(rest, at + 1, next.tail, len)) {
                return (best > 0).then(|| (usize::from(best) - 1, best_len));
            }
            at += 1 + len;
            cell = next;
            if cell.stop > 0 {
                (best, best_len) = (cell.stop, at);
            }
        }
        if cell.end > 0 {
            return Some((usize::from(cell.end) - 1, rest.len()));
        }
        (best > 0).then(|| (usize::from(best) - 1, best_len))
    }
}

/// Returns true if the `len` bytes of `tail` are at `at`.
#[inline(always)]
fn has_tail(text: &[u8], at: usize, tail: u64, len: usize) -> bool {
    let word = match text.get(at..at + 8) {
        Some(bytes) => bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)),
        None => {
            let Some(bytes) = text.get(at..at + len) else { return false };
            bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
        }
    };
    (word ^ tail) << (64 - 8 * len as u32) == 0
}

/// The way from a node to the next one that has not exactly one child, or where a phrase stops or ends, or the tail is
/// full.
#[derive(Clone, Copy)]
struct Edge {
    byte: u8,
    /// Bytes behind `byte`; the highest byte is their number.
    tail: u64,
    child: usize,
}

/// Gives a cell to each node at which an edge ends; the bytes on the way are in tails.
fn place(nodes: &[Node]) -> Vec<TrieCell> {
    // The edges of each node that has children: each leads by its first byte to the node at the end of its tail.
    let mut edges: Vec<(usize, Vec<Edge>)> = vec![];
    let mut todo = vec![0];
    while let Some(node) = todo.pop() {
        let own: Vec<Edge> =
            nodes[node].children.iter().map(|&(byte, child)| with_tail(nodes, byte, child)).collect();
        todo.extend(own.iter().map(|edge| edge.child));
        if !own.is_empty() {
            edges.push((node, own));
        }
    }
    edges.sort_by_key(|(node, own)| (usize::MAX - own.len(), *node));
    let mut places = FreeCells { taken: vec![true], bases: vec![true], first_free: 1 };
    let mut bases = vec![0; nodes.len()];
    for (node, own) in &edges {
        let children: Vec<(u8, usize)> = own.iter().map(|edge| (edge.byte, edge.child)).collect();
        bases[*node] = places.take(&children);
    }
    let cell = |node: usize, byte: u8, tail: u64| TrieCell {
        base_byte: (bases[node] as u32) << 8 | u32::from(byte),
        stop: nodes[node].stop,
        end: nodes[node].end,
        tail,
    };
    let mut cells = vec![TrieCell::default(); places.taken.len()];
    cells[0] = cell(0, 0, 0);
    for (node, own) in &edges {
        for &Edge { byte, tail, child } in own {
            cells[bases[*node] + usize::from(byte)] = cell(child, byte, tail);
        }
    }
    cells
}

/// Returns the edge that begins with `byte` and leads through `child`.
fn with_tail(nodes: &[Node], byte: u8, mut child: usize) -> Edge {
    let (mut tail, mut len) = (0, 0);
    while let ([(next, only)], 0, 0) = (&nodes[child].children[..], nodes[child].stop, nodes[child].end)
        && len < TAIL
    {
        tail |= u64::from(*next) << (8 * len);
        (len, child) = (len + 1, *only);
    }
    Edge { byte, tail: tail | (len as u64) << 56, child }
}
