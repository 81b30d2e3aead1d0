//! The list of destinations that are never dialled, `tests/forbidden.txt`.

use std::net::IpAddr;

/// One line of the list.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The requested destination.
    pub(crate) request: &'static str,
    /// The resolver's answers to one query after the other; empty when the request is no name.
    pub(crate) answers: Vec<Vec<IpAddr>>,
    /// The reason for its refusal, with the number of the line.
    pub(crate) why: String,
}

/// Returns all entries, at least 200.
pub(crate) fn entries() -> Vec<Entry> {
    let lines = include_str!("../forbidden.txt").lines().enumerate();
    let entries: Vec<Entry> = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(index, line)| {
            let columns: Vec<&'static str> = line.split('|').map(str::trim).collect();
            let [request, answers, why] = columns[..] else { panic!("line {}: {line}", index + 1) };
            let answer =
                |text: &str| text.split(',').map(|ip| ip.trim().parse().unwrap()).collect();
            let answers = match answers {
                "" => Vec::new(),
                answers => answers.split(';').map(answer).collect(),
            };
            Entry { request, answers, why: format!("line {}, {request}: {why}", index + 1) }
        })
        .collect();
    assert!(entries.len() >= 200, "{} entries", entries.len());
    entries
}
