//! The results as a table for people.

use std::fmt::{Display, Write};

use comfy_table::{CellAlignment, Table, presets};

use crate::run::{Figure, Mode, Results};
use crate::subject::{Group, Subject};

/// Returns one table for each mode, with the facts needed to read it.
pub(crate) fn table(results: &Results) -> String {
    let mut text = String::new();
    let line = |text: &mut String, words: std::fmt::Arguments<'_>| {
        text.write_fmt(words).and_then(|()| text.write_char('\n')).expect("a string takes it");
    };
    line(
        &mut text,
        format_args!(
            "kernel {}, {} CPUs, {} rounds",
            results.kernel,
            results.cpus,
            results.plan.rounds()
        ),
    );
    for program in &results.programs {
        line(&mut text, format_args!("{program}"));
    }
    for (subject, why) in &results.absent {
        line(&mut text, format_args!("{} is absent: {why}", subject.name()));
    }
    for failure in &results.failures {
        line(&mut text, format_args!("{failure}; that round counts for nobody"));
    }
    for &mode in &results.modes {
        line(&mut text, format_args!("\n{}", explained(mode)));
        for words in [
            best_settings("HAProxy", &results.haproxy_best, mode),
            best_settings("Tradewind", &results.relay_best, mode),
        ]
        .into_iter()
        .flatten()
        {
            line(&mut text, format_args!("{words}"));
        }
        for (group, words) in [
            (Group::Single, None),
            (Group::Chain, Some("The same by way of a gateway and a relay, the leg between them:")),
            (Group::Three, Some("By way of three in a row, ours behind a gateway:")),
        ] {
            if !results.have(group) {
                continue;
            }
            if let Some(words) = words {
                line(&mut text, format_args!("\n{words}"));
            }
            line(&mut text, format_args!("{}", mode_table(results, mode, group)));
        }
    }
    line(
        &mut text,
        format_args!(
            "Medians of the rounds. Ratios are the geometric mean of the rounds' ratios with its\n\
             95 % confidence interval (Student's t on logarithms)."
        ),
    );
    text
}

/// Returns the settings with which a proxy performed best in the sweep of one mode.
fn best_settings<S: Display>(name: &str, best: &[(Mode, [S; 3])], mode: Mode) -> Option<String> {
    let (_, [one, eight, other]) = best.iter().find(|(of, _)| *of == mode)?;
    Some(format!("{name}'s best settings: {one} (1 stream); {eight} (8); {other} (all else)"))
}

const fn explained(mode: Mode) -> &'static str {
    match mode {
        Mode::Pinned => "Pinned: load on the first CPU, the proxy on the second",
        Mode::Unpinned => "Unpinned: load and proxy share all CPUs, the kernel chooses",
    }
}

/// Returns the table of one mode and group.
fn mode_table(results: &Results, mode: Mode, group: Group) -> Table {
    let absent = |subject: &Subject| results.absent.iter().any(|(missing, _)| missing == subject);
    let subjects: Vec<Subject> =
        Subject::ALL.into_iter().filter(|s| s.group() == group && !absent(s)).collect();
    let (ratios, compared): (_, &[_]) = match group {
        Group::Single => {
            (&results.ratios_to_haproxy[..], &[(Subject::Tradewind, "Tradewind / HAProxy")])
        }
        Group::Chain => {
            let columns =
                &[(Subject::ChainTls, "TLS 1.3 / plain"), (Subject::ChainTraced, "traced / plain")];
            (&results.ratios_to_plain[..], columns)
        }
        Group::Three => (&[][..], &[]),
    };
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let mut head = vec![String::new()];
    head.extend(subjects.iter().map(|subject| subject.name().to_owned()));
    head.extend(compared.iter().map(|(_, column)| (*column).to_owned()));
    table.set_header(head);
    let found = |figure, subject| {
        let mut all = results.series.iter();
        all.find(|s| (s.mode, s.figure, s.subject) == (mode, figure, subject))
    };
    for figure in Figure::ALL {
        if !subjects.iter().any(|subject| found(figure, *subject).is_some()) {
            continue;
        }
        let mut row = vec![figure.label().to_owned()];
        for &subject in &subjects {
            let series = found(figure, subject);
            row.push(series.map_or(String::new(), |series| shown(series.median)));
        }
        for &(subject, _) in compared {
            let wanted = (mode, figure, subject);
            let ratio = ratios.iter().find(|r| (r.mode, r.figure, r.subject) == wanted);
            row.push(ratio.map_or(String::new(), |ratio| {
                let estimate = ratio.estimate;
                format!("{:.2} [{:.2}, {:.2}]", estimate.ratio, estimate.low, estimate.high)
            }));
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Formats a value with about three significant digits.
fn shown(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
