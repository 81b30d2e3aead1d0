//! Output of `ping` and `fping`: the round-trip time of each reply.

use tradewind_control::imported::Imported;

use super::given::{Given, summary};

/// Replies, in milliseconds, and the time of the last one if the lines have it.
#[derive(Default)]
struct Replies {
    times: Vec<f64>,
    unix_ms: Option<u64>,
}

impl Replies {
    fn add(&mut self, rtt_ms: f64, unix_ms: Option<u64>) {
        self.times.push(rtt_ms);
        self.unix_ms = unix_ms.or(self.unix_ms);
    }

    fn measured(self, given: &Given, expected: &str, hint: &str) -> Result<Imported, String> {
        let (from, to) = given.ends()?;
        let none = || format!("holds no reply: expected lines such as `{expected}`");
        let rtt = Some(summary(self.times).ok_or_else(none)?);
        Ok(Imported { from, to, unix_ms: given.time(self.unix_ms, hint)?, rtt, rate: None })
    }
}

/// Reads lines such as `64 bytes from 192.0.2.1: icmp_seq=1 ttl=64 time=0.160 ms`.
pub(super) fn read_ping(text: &str, given: &Given) -> Result<Imported, String> {
    let mut replies = Replies::default();
    for (number, line) in text.lines().enumerate() {
        let (unix_ms, line) = stamp(line);
        let Some((_, rest)) = line.split_once(" time=") else { continue };
        if rest.contains("(DUP!)") {
            continue;
        }
        let rtt = rest.trim_end().strip_suffix("ms").map(str::trim).and_then(millis);
        let rtt = rtt.ok_or_else(|| {
            let found = tradewind_units::shown(rest);
            format!("line {}: time: expected milliseconds such as `0.160 ms`: {found}", number + 1)
        })?;
        replies.add(rtt, unix_ms);
    }
    let expected = "64 bytes from 192.0.2.1: icmp_seq=1 ttl=64 time=0.160 ms";
    replies.measured(given, expected, "run `ping -D`")
}

/// Reads what `fping` prints with -c, -C or -e of one target.
pub(super) fn read_fping(text: &str, given: &Given) -> Result<Imported, String> {
    let mut replies = Replies::default();
    let (mut target, mut has_lines): (Option<&str>, bool) = (None, false);
    for (number, line) in text.lines().enumerate() {
        let (unix_ms, line) = stamp(line);
        let Some((name, times)) = target_and_times(line.trim()).map_err(|found| {
            let found = tradewind_units::shown(found);
            format!("line {}: expected what `fping -c`, `-C` or `-e` prints: {found}", number + 1)
        })?
        else {
            continue;
        };
        if let Some(other) = target.filter(|other| *other != name) {
            let (one, two) = (tradewind_units::shown(other), tradewind_units::shown(name));
            return Err(format!(
                "line {}: a second target, {two} beside {one}: expected a file of one target",
                number + 1
            ));
        }
        target = Some(name);
        // The summary of -C repeats what the lines before it say.
        let is_line = line.contains(" : [");
        if has_lines && !is_line {
            continue;
        }
        has_lines |= is_line;
        times.into_iter().for_each(|rtt| replies.add(rtt, unix_ms));
    }
    replies.measured(given, "192.0.2.1 : [0], 64 bytes, 0.025 ms", "run `fping -D -c 10`")
}

/// Returns the target of a line, and its round-trip times; `None` for a line without any.
///
/// # Errors
/// The line, if `fping` does not write such.
fn target_and_times(line: &str) -> Result<Option<(&str, Vec<f64>)>, &str> {
    if line.is_empty() || line.starts_with("ICMP ") || line.contains(" : duplicate for ") {
        return Ok(None);
    }
    if let Some((name, rest)) = line.split_once(" is alive (") {
        let rtt = rest.strip_suffix(" ms)").and_then(millis).ok_or(line)?;
        return Ok(Some((name, vec![rtt])));
    }
    if line.ends_with(" is unreachable") {
        return Ok(None);
    }
    let (name, rest) = line.split_once(" : ").ok_or(line)?;
    let name = name.trim();
    if rest.starts_with("xmt/rcv/%loss") {
        return Ok(None);
    }
    if rest.starts_with('[') {
        // `[0], 64 bytes, 0.025 ms (0.025 avg, 0% loss)`, or `[0], timed out (NaN avg, ...)`.
        let part = rest.split(", ").nth(2).and_then(|part| part.split_once(" ms"));
        if rest.contains(", timed out") {
            return Ok(Some((name, Vec::new())));
        }
        let rtt = part.and_then(|(rtt, _)| millis(rtt)).ok_or(line)?;
        return Ok(Some((name, vec![rtt])));
    }
    let answered = rest.split_whitespace().filter(|time| *time != "-");
    let times: Option<Vec<f64>> = answered.map(millis).collect();
    Ok(Some((name, times.ok_or(line)?)))
}

/// Takes the time off that `-D` puts before a line: `[1795785270.869936] `, in seconds.
fn stamp(line: &str) -> (Option<u64>, &str) {
    let split = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    let stamped = split.and_then(|(seconds, rest)| {
        let seconds: f64 = seconds.parse().ok()?;
        (seconds.is_finite() && seconds > 0.0).then_some(((seconds * 1e3) as u64, rest))
    });
    stamped.map_or((None, line), |(unix_ms, rest)| (Some(unix_ms), rest))
}

fn millis(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|ms: &f64| ms.is_finite() && *ms > 0.0)
}

#[cfg(test)]
mod tests {
    use super::super::given::tests::given;
    use super::*;

    /// As iputils 20221126 prints it.
    const PING: &str = "PING 192.0.2.1 (192.0.2.1) 56(84) bytes of data.
[1795785270.869936] 64 bytes from 192.0.2.1: icmp_seq=1 ttl=64 time=30.0 ms
[1795785271.071869] 64 bytes from 192.0.2.1: icmp_seq=2 ttl=64 time=31.5 ms
[1795785272.071869] no answer yet for icmp_seq=3
[1795785272.479888] 64 bytes from 192.0.2.1: icmp_seq=4 ttl=64 time=31 ms

--- 192.0.2.1 ping statistics ---
4 packets transmitted, 3 received, 25% packet loss, time 610ms
rtt min/avg/max/mdev = 30.000/30.833/31.500/0.624 ms
";

    #[test]
    fn replies_of_ping_are_read_with_their_time() {
        let one = read_ping(PING, &given()).unwrap();
        let rtt = one.rtt.unwrap();
        assert_eq!((rtt.min_ms, rtt.median_ms, rtt.samples), (30.0, 31.0, 3));
        assert_eq!((one.unix_ms, one.rate), (1_795_785_272_479, None));
        let without: String = PING.replace("[1795785272.479888] ", "");
        assert_eq!(read_ping(&without, &given()).unwrap().unix_ms, 1_795_785_271_071);
        let at = Given { at: Some(7), ..given() };
        assert_eq!(read_ping("x: time=1.0 ms", &at).unwrap().unix_ms, 7);
    }

    #[test]
    fn replies_of_fping_are_read_in_each_form() {
        let count = "[1795785271.48293] a : [0], 64 bytes, 25.5 ms (25.5 avg, 0% loss)\n\
                     [1795785272.48293] a : [1], timed out (25.5 avg, 50% loss)\n\n\
                     a : xmt/rcv/%loss = 2/1/50%, min/avg/max = 25.5/25.5/25.5\n";
        let one = read_fping(count, &given()).unwrap();
        assert_eq!((one.unix_ms, one.rtt.unwrap().samples), (1_795_785_271_482, 1));
        let at = Given { at: Some(7), ..given() };
        let vertical = read_fping("ICMP Host Unreachable from b\na : 41.0 - 48.0\n", &at).unwrap();
        assert_eq!(vertical.rtt.unwrap().median_ms, 44.5);
        assert_eq!(read_fping("a is alive (32.0 ms)\n", &at).unwrap().rtt.unwrap().min_ms, 32.0);
    }

    #[test]
    fn refusals_name_line_and_remedy() {
        let at = Given { at: Some(7), ..given() };
        let nowhere = Given { ends: None, ..at.clone() };
        let ping = |text| read_ping(text, &at).unwrap_err();
        let fping = |text| read_fping(text, &at).unwrap_err();
        for (refused, expected) in [
            (ping("x\na: time=fast ms"), "line 2: time: expected milliseconds"),
            (ping("a: time=-1 ms"), "line 1: time: "),
            (ping("rtt min/avg/max/mdev = 0.038/0.072/0.160/0.050 ms"), "holds no reply: "),
            (read_ping("a: time=1 ms", &given()).unwrap_err(), "holds no time: run `ping -D`"),
            (read_ping("a: time=1 ms", &nowhere).unwrap_err(), "holds no places: "),
            (fping("a : 1.0\nb : 2.0"), "line 2: a second target, b beside a: "),
            (fping("a : 1.0\nnonsense"), "line 2: expected what `fping -c`"),
            (fping("a : [0], 64 bytes, x ms"), "line 1: expected what `fping -c`"),
            (fping("a : - -"), "holds no reply: "),
        ] {
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}
