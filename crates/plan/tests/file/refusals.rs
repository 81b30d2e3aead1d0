//! Wrong problem files, and their errors.

use super::*;

#[test]
fn invalid_values_are_refused_with_line_and_field() {
    let cases = [
        ("from = \"a\"", "from = \"c\"", "line 8: from: no site `c`; the file has `a`, `b`"),
        ("to = \"b\"", "to = \"a\"", "line 9: to: a flow from `a` to itself"),
        ("volume = \"2 GB\"", "volume = \"0 B\"", "line 10: volume: a volume above zero"),
        ("volume = \"2 GB\"", "volume = \"-2 GB\"", "line 10: volume: size: "),
        ("volume = \"2 GB\"", "volume = 2", "line 10: volume: "),
        ("volume = \"2 GB\"", "volume = \"2 GB\"\nweight = 0", "line 11: weight: a weight of 1"),
        ("budget_usd = 2.0", "budget_usd = nan", "line 1: budget_usd: money: "),
        ("budget_usd = 2.0", "budget_usd = -1", "line 1: budget_usd: money: "),
        ("budget_usd = 2.0", "colour = 2", "line 1: colour: unknown field `colour`"),
        ("budget_usd = 2.0", "robust = -1.0", "line 1: robust: a number from 0 to 100"),
        ("budget_usd = 2.0", "robust = nan", "line 1: robust: a number from 0 to 100"),
        ("budget_usd = 2.0", "max_relays = 5", "line 1: max_relays: 0 to 4 relays"),
        ("budget_usd = 2.0", "rtt_tables = [\"x.csv\"]", "line 1: rtt_tables: x.csv: not there"),
        (
            "gcp:europe-west2\"]\n[[site",
            "gcp:mars\"]\n[[site",
            "line 2: regions: region `gcp:mars`",
        ),
        ("rtt = \"200 ms\"", "rtt = \"0 ms\"", "line 11: pair: rtt: a span above zero"),
        ("rtt = \"200 ms\"", "rtt = \"-3 ms\"", "line 13: rtt: duration: "),
        ("rtt = \"200 ms\"", "rate = \"0 bit/s\"", "line 13: rate: bandwidth: "),
        ("rtt = \"200 ms\"", "loss = 2.0", "line 13: loss: ratio: "),
        ("rtt = \"200 ms\"", "window = \"0 B\"", "line 13: window: a window above zero"),
        ("rtt = \"200 ms\"", "connections = 0", "line 13: connections: a number of connections"),
        (
            "rtt = \"200 ms\"",
            "rate = \"1 Gbit/s\"",
            "line 8: from: no round-trip time from site a to site b",
        ),
        (
            "rtt = \"60 ms\"",
            "",
            "line 8: from: no round-trip time from site a to relay gcp:europe-west2",
        ),
        (
            "between = [\"a\", \"b\"]",
            "between = [\"a\", \"x\"]",
            "line 12: between: no site and no region",
        ),
        ("between = [\"a\", \"b\"]", "from = \"a\"", "line 11: pair: either `between = [a, b]`"),
        ("id = \"b\"", "id = \"a\"", "line 6: id: a second site `a`"),
        ("id = \"b\"", "id = \"gcp:us-east4\"", "line 6: id: a region is called so"),
        ("id = \"b\"", "id = \"b\"\nregion = \"gcp:mars\"", "line 7: region: region `gcp:mars`"),
        ("id = \"b\"", "id = \"b\"\nrate = \"0 Mbit/s\"", "line 7: rate: bandwidth: "),
        ("id = \"b\"", "id = \"b\"\negress_cap = \"none\"", "line 7: egress_cap: bandwidth: "),
    ];
    for (from, to, expected) in cases {
        assert!(SMALL.contains(from), "{from}");
        let error = read(&SMALL.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{to}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn sections_that_contradict_themselves_are_refused() {
    let relay = "[[relay_type]]\nid = \"r\"\ncapacity = \"1 Gbit/s\"\nset_up_usd = 1.0\n";
    let cases = [
        (
            format!("{relay}per_connection = \"2 Gbit/s\""),
            "line 24: per_connection: 2 Gbit/s for one",
        ),
        (format!("{relay}{relay}"), "line 25: id: a second relay type `r`"),
        ("[running]\n[[running.relay]]\nregion = \"gcp:us-east4\"".into(), "line 22: region: "),
        ("[[running.path]]\nflow = \"x\"\nregions = []".into(), "line 21: flow: no flow `x`"),
        (
            "[[running.path]]\nflow = \"a-b\"\n\
             regions = [\"gcp:us-east4\", \"gcp:us-west1\", \"gcp:us-east1\"]"
                .into(),
            "line 22: regions: 3 relays, but `max_relays` is 2",
        ),
        (
            "[[running.path]]\nflow = \"a-b\"\n\
             regions = [\"gcp:us-east4\", \"gcp:us-east4\"]"
                .into(),
            "line 22: regions: region `gcp:us-east4` twice",
        ),
        (
            "[generate]\npattern = \"one-to-many\"\nvolume = \"1 GB\"\n\
             sources = [\"a\", \"b\"]"
                .into(),
            "line 23: sources: `one-to-many` has one source",
        ),
        ("[egress]\nusd_per_gb = -1.0".into(), "line 21: usd_per_gb: price: "),
        (
            "[[egress.pair]]\nfrom = \"gcp:us-east4\"\nto = \"moon\"\nusd_per_gb = 1.0".into(),
            "line 22: to: ",
        ),
        (
            "[generate]\npattern = \"star\"\nvolume = \"1 GB\"".into(),
            "line 21: pattern: unknown variant",
        ),
        (
            "[generate]\npattern = \"one-to-many\"\nflows = 0\nvolume = \"1 GB\"".into(),
            "line 22: flows: ",
        ),
        ("[leg.inner]\nwindow = \"0 B\"".into(), "line 21: window: "),
        (
            "[[flow]]\nfrom = \"a\"\nto = \"b\"\nvolume = \"1 GB\"".into(),
            "line 20: flow: a second flow",
        ),
    ];
    for (more, expected) in cases {
        let error = read(&format!("{SMALL}{more}\n")).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{more}: {error}");
    }
    let error = read("[[site]]\nid = \"a\"\n").unwrap_err().to_string();
    assert!(error.starts_with("line 1: ") && error.contains("no flows"), "{error}");
}

#[test]
fn impossible_figures_are_refused() {
    let lost = |loss: &str| {
        SMALL.replacen("rtt = \"200 ms\"", &format!("rtt = \"200 ms\"\nloss = {loss}"), 1)
    };
    let error = read(&lost("1.0")).unwrap_err().to_string();
    assert!(error.starts_with("line 14: loss: a share below 1"), "{error}");
    assert!(read(&lost("0.99")).is_ok());
    let section = read(&format!("{SMALL}[leg.all]\nloss = 1\n")).unwrap_err().to_string();
    assert!(section.starts_with("line 21: loss: a share below 1"), "{section}");

    let placed = |rtt: &str| {
        SMALL
            .replacen(
                "id = \"a\"",
                "id = \"a\"\nlocation = { latitude = 35.7, longitude = 139.7 }",
                1,
            )
            .replacen("rtt = \"60 ms\"", &format!("rtt = \"{rtt}\""), 1)
    };
    assert_eq!(read(&placed("220 ms")).unwrap().notes, Vec::<String>::new());
    let notes = read(&placed("0.22 ms")).unwrap().notes;
    assert!(
        notes[0].contains("shorter than light takes") && notes[0].contains("0.220 ms"),
        "{notes:?}"
    );
    assert_eq!(read(&placed("9 s")).unwrap().notes, Vec::<String>::new());
    let notes = read(&placed("220 s")).unwrap().notes;
    assert!(notes[0].contains("longer than any path takes, such as from site a to"), "{notes:?}");
}

#[test]
fn misspelt_region_gets_suggestion() {
    let named = |name: &str| {
        read(&SMALL.replacen("[\"gcp:europe-west2\"]", &format!("[\"{name}\"]"), 1))
            .unwrap_err()
            .to_string()
    };
    assert!(
        named("gcp:europe-wset2").ends_with("did you mean `gcp:europe-west2`?"),
        "{}",
        named("gcp:europe-wset2")
    );
    assert!(!named("gcp:mars").contains("did you mean"), "{}", named("gcp:mars"));
    let site = SMALL.replacen("[\"b\", \"gcp:europe-west2\"]", "[\"b\", \"europe-west2\"]", 1);
    let error = read(&site).unwrap_err().to_string();
    assert!(error.ends_with("did you mean `gcp:europe-west2`?"), "{error}");
}

#[test]
fn errors_of_types_are_in_plain_words() {
    let error = read(&SMALL.replacen("budget_usd = 2.0", "budget_usd = \"two\"", 1))
        .unwrap_err()
        .to_string();
    assert!(!error.contains("f64"), "{error}");
    let error = read(&SMALL.replacen("budget_usd = 2.0", "max_relays = \"two\"", 1))
        .unwrap_err()
        .to_string();
    assert!(error.contains("a whole number from 0"), "{error}");
}
