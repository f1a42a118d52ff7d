//! Topic patterns: `*` is exactly one word, `#` any number of words, none included; words are separated by dots.
//!
//! Patterns share their beginnings in a trie. A routing key is matched word by word against the set of all nodes reached so
//! far, so the work is bounded by words times nodes, whatever a client binds (`#.#.#…` costs no more than `#.a.#`).

use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use understudy_record::Binding;

type NodeId = u32;
const ROOT: NodeId = 0;

#[derive(Debug)]
pub(crate) struct TopicTrie {
    nodes: Vec<Node>,
    /// Places in `nodes` of nodes that were removed.
    free: Vec<NodeId>,
}

#[derive(Debug, Default)]
struct Node {
    words: HashMap<Bytes, NodeId>,
    star: Option<NodeId>,
    hash: Option<NodeId>,
    /// This node is the `#` of its parent: it also stays where it is on any word.
    is_hash: bool,
    bindings: Vec<Arc<Binding>>,
}

impl Default for TopicTrie {
    fn default() -> Self {
        Self { nodes: vec![Node::default()], free: Vec::new() }
    }
}

impl TopicTrie {
    pub(crate) fn insert(&mut self, binding: Arc<Binding>) {
        let mut at = ROOT;
        let words: Vec<Bytes> = words(binding.routing_key.as_bytes()).map(Bytes::copy_from_slice).collect();
        for word in words {
            at = match self.child(at, &word) {
                Some(child) => child,
                None => self.add_child(at, word),
            };
        }
        self.node_mut(at).bindings.push(binding);
    }

    pub(crate) fn remove(&mut self, binding: &Arc<Binding>) {
        let mut path = vec![ROOT];
        let pattern: Vec<&[u8]> = words(binding.routing_key.as_bytes()).collect();
        for word in &pattern {
            match self.child(path[path.len() - 1], word) {
                Some(child) => path.push(child),
                None => return,
            }
        }
        let leaf = self.node_mut(path[path.len() - 1]);
        if let Some(place) = leaf.bindings.iter().position(|other| Arc::ptr_eq(other, binding)) {
            leaf.bindings.swap_remove(place);
        }
        for depth in (1..path.len()).rev() {
            if !self.node(path[depth]).is_empty() {
                break;
            }
            self.remove_child(path[depth - 1], pattern[depth - 1], path[depth]);
        }
    }

    /// Calls `found` with the bindings of each pattern that matches `key`; once for each.
    pub(crate) fn for_each_match(&self, key: &[u8], mut found: impl FnMut(&Arc<Binding>)) {
        let (mut here, mut next) = (Vec::with_capacity(8), Vec::with_capacity(8));
        self.reach(ROOT, &mut here);
        for word in words(key) {
            next.clear();
            for at in &here {
                let node = self.node(*at);
                if node.is_hash {
                    next.push(*at);
                }
                let followed = [node.words.get(word).copied(), node.star];
                followed.into_iter().flatten().for_each(|child| self.reach(child, &mut next));
            }
            // A node reached by two ways is one place to go on from.
            next.sort_unstable();
            next.dedup();
            std::mem::swap(&mut here, &mut next);
            if here.is_empty() {
                return;
            }
        }
        here.sort_unstable();
        here.dedup();
        here.iter().flat_map(|at| &self.node(*at).bindings).for_each(&mut found);
    }

    /// A node, and those that follow by `#` standing for no word.
    fn reach(&self, mut at: NodeId, into: &mut Vec<NodeId>) {
        into.push(at);
        while let Some(hash) = self.node(at).hash {
            into.push(hash);
            at = hash;
        }
    }

    fn child(&self, at: NodeId, word: &[u8]) -> Option<NodeId> {
        match word {
            b"*" => self.node(at).star,
            b"#" => self.node(at).hash,
            word => self.node(at).words.get(word).copied(),
        }
    }

    fn add_child(&mut self, at: NodeId, word: Bytes) -> NodeId {
        let fresh = Node { is_hash: &word[..] == b"#", ..Node::default() };
        let child = match self.free.pop() {
            Some(place) => {
                *self.node_mut(place) = fresh;
                place
            }
            None => {
                self.nodes.push(fresh);
                NodeId::try_from(self.nodes.len() - 1).expect("four billion pattern words do not fit in memory")
            }
        };
        let node = self.node_mut(at);
        match &word[..] {
            b"*" => node.star = Some(child),
            b"#" => node.hash = Some(child),
            _ => _ = node.words.insert(word, child),
        }
        child
    }

    fn remove_child(&mut self, at: NodeId, word: &[u8], child: NodeId) {
        let node = self.node_mut(at);
        match word {
            b"*" => node.star = None,
            b"#" => node.hash = None,
            word => _ = node.words.remove(word),
        }
        *self.node_mut(child) = Node::default();
        self.free.push(child);
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id as usize]
    }
}

impl Node {
    fn is_empty(&self) -> bool {
        self.bindings.is_empty() && self.words.is_empty() && self.star.is_none() && self.hash.is_none()
    }
}

/// The empty key has no words; `a..b` has three, the second empty.
fn words(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let some = !key.is_empty();
    key.split(|byte| *byte == b'.').filter(move |_| some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use understudy_record::{Destination, Index, QueueId, ShortStr};

    use super::*;

    fn binding(pattern: &str) -> Arc<Binding> {
        let (source, routing_key) = (ShortStr::from_static("t"), ShortStr::try_from(pattern).unwrap());
        let destination = Destination::Queue(QueueId(Index(1)));
        Arc::new(Binding { source, destination, routing_key, arguments: Bytes::new() })
    }

    fn matches(trie: &TopicTrie, key: &str) -> Vec<String> {
        let mut found = Vec::new();
        trie.for_each_match(key.as_bytes(), |binding| found.push(binding.routing_key.to_string()));
        found.sort();
        found
    }

    /// Case P15, and the corners beside it.
    #[test]
    fn patterns_match_as_amqp_says() {
        let table = [
            ("a.*.c.#", "a.b.c", true),
            ("a.*.c.#", "a.b.c.d.e", true),
            ("a.*.c.#", "a.c", false),
            ("#", "", true),
            ("#", "a.b", true),
            ("*", "", false),
            ("*", "a", true),
            ("*", "a.b", false),
            ("#.#", "", true),
            ("#.*", "", false),
            ("#.*", "a", true),
            ("#.b.#", "a.b", true),
            ("#.b.#", "b", true),
            ("#.b.#", "a.c", false),
            ("a.#.#.b", "a.b", true),
            ("a..b", "a..b", true),
            ("a.*.b", "a..b", true),
            ("a.*.b", "a.b", false),
            ("", "", true),
            ("", "a", false),
            ("a*", "ab", false),
        ];
        for (pattern, key, expected) in table {
            let mut trie = TopicTrie::default();
            trie.insert(binding(pattern));
            assert_eq!(!matches(&trie, key).is_empty(), expected, "{pattern:?} against {key:?}");
        }
    }

    /// With backtracking this would take longer than anybody waits.
    #[test]
    fn many_hashes_do_not_multiply_the_work() {
        let mut trie = TopicTrie::default();
        let pattern = "#.a.".repeat(60) + "c";
        trie.insert(binding(&pattern));
        let words = "a.".repeat(125);
        assert_eq!(matches(&trie, &(words.clone() + "d")), [""; 0]);
        assert_eq!(matches(&trie, &(words + "c")), [pattern]);
    }

    /// What the words mean, written the plain way.
    fn plain_match(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern.split_first(), key.split_first()) {
            (None, None) => true,
            (Some((&"#", rest)), _) => plain_match(rest, key) || (!key.is_empty() && plain_match(pattern, &key[1..])),
            (Some((word, rest)), Some((first, others))) => (*word == "*" || word == first) && plain_match(rest, others),
            _ => false,
        }
    }

    fn split(text: &str) -> Vec<&str> {
        words(text.as_bytes()).map(|word| std::str::from_utf8(word).unwrap()).collect()
    }

    proptest! {
        #[test]
        fn the_trie_finds_what_each_pattern_alone_would(
            patterns in proptest::collection::btree_set("([ab*#]\\.){0,4}[ab*#]", 0..12),
            gone in proptest::collection::vec(any::<bool>(), 12),
            key in "(([ab]\\.){0,4}[ab])?",
        ) {
            let bindings: Vec<_> = patterns.iter().map(|pattern| binding(pattern)).collect();
            let mut trie = TopicTrie::default();
            bindings.iter().for_each(|binding| trie.insert(binding.clone()));
            for (binding, _) in bindings.iter().zip(&gone).filter(|(_, gone)| **gone) {
                trie.remove(binding);
            }
            let kept = patterns.iter().zip(&gone).filter(|(_, gone)| !**gone).map(|(pattern, _)| pattern);
            let expected: Vec<_> = kept.filter(|p| plain_match(&split(p), &split(&key))).cloned().collect();
            prop_assert_eq!(matches(&trie, &key), expected);
            bindings.iter().for_each(|binding| trie.remove(binding));
            prop_assert_eq!(trie.free.len(), trie.nodes.len() - 1, "every node but the root was given back");
        }
    }
}
