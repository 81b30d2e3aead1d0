//! Tables of round-trip times, rates and prices.

use super::*;

#[test]
fn invalid_table_is_refused_with_line_and_column() {
    let text = SMALL.replacen("budget_usd = 2.0", "rtt_tables = [\"t\"]\nrate_tables = [\"r\"]", 1);
    let rates = "src,dst,mbps\n";
    let cases = [
        ("", rates, "t: line 1: a header `src,dst,rtt_ms` is missing"),
        ("src,dst\n", rates, "t: line 1: rtt_ms: the header has no such column"),
        ("src,dst,rtt_ms,dest\n", rates, "t: line 1: dest: a second such column"),
        ("src,dst,rtt_ms\na,b\n", rates, "t: line 2: 2 cells, the header has 3"),
        ("src,dst,rtt_ms\n# note\na,x,3\n", rates, "t: line 3: dst: no site and no region"),
        (",a,b\na,,3\nb,4\n", rates, "t: line 3: 2 cells, the header has 3"),
        (",a,b\na,,ten\n", rates, "t: line 2: rtt_ms: a number, not `ten`"),
        ("src,dst,rtt_ms\na,,3\n", rates, "t: line 2: dst: the name"),
        ("src,dst,rtt_ms\na,b,\n", rates, "t: line 2: rtt_ms: a number is missing"),
        ("src,dst,rtt_ms\na,b,ten\n", rates, "t: line 2: rtt_ms: a number, not `ten`"),
        ("src,dst,rtt_ms\na,b,NaN\n", rates, "t: line 2: rtt_ms: duration: "),
        ("src,dst,rtt_ms\na,b,-4\n", rates, "t: line 2: rtt_ms: duration: "),
        ("src,dst,rtt_ms\na,b,0\n", rates, "t: line 2: rtt_ms: round-trip time: "),
        (
            "src,dst,rtt_ms\na,gcp:us-east4,3\na,gcp:us-east4,4\n",
            rates,
            "t: line 3: rtt_ms: a second",
        ),
        ("src,dst,rtt_ms\n", "src,dst,mbps\na,b,0\n", "r: line 2: mbps: bandwidth: "),
        ("src,dst,rtt_ms\n", "src,dst,mbps,spread_mbps\na,b,5,-1\n", "r: line 2: spread_mbps: "),
    ];
    let from_a_spreadsheet = "\u{feff}src,dst,rtt_ms\r\n\r\na,gcp:us-east4,3\r\n";
    assert!(read_with(&text, &[("t", from_a_spreadsheet), ("r", rates)]).is_ok());
    for (rtts, rates, expected) in cases {
        let error = read_with(&text, &[("t", rtts), ("r", rates)]).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{rtts}{rates}: {error}");
    }
}

#[test]
fn sites_inherit_paths_of_region_pair() {
    let text = |more: &str| {
        format!(
            "regions = []\n[[site]]\nid = \"a\"\nregion = \"gcp:us-east4\"\n[[site]]\nid = \"b\"\n\
             region = \"gcp:us-west1\"\n[[flow]]\nfrom = \"a\"\nto = \"b\"\nvolume = \"1 GB\"\n\
             [[pair]]\nbetween = [\"gcp:us-east4\", \"gcp:us-west1\"]\nrtt = \"50 ms\"\n{more}"
        )
    };
    let own = "[[pair]]\nbetween = [\"a\", \"b\"]\n";
    let cap = |more: &str| leg(&read(&text(more)).unwrap(), site("a"), site("b")).cap;
    assert_eq!(cap(""), None);
    assert_eq!(cap("rate = \"10 Mbit/s\"\n"), Bandwidth::from_mbps(10.0).ok());
    let exact = format!("rate = \"10 Mbit/s\"\n{own}rate = \"30 Mbit/s\"\n");
    assert_eq!(cap(&exact), Bandwidth::from_mbps(30.0).ok(), "its own statement goes before");
    let legs = |more: &str| read(&text(more)).unwrap().inputs.legs.len();
    assert_eq!((legs(""), legs("blocked = true\n")), (1, 0));
    assert_eq!(legs(&format!("blocked = true\n{own}blocked = false\n")), 1);
    assert_eq!(legs(&format!("blocked = true\n{own}loss = 0.1\n")), 0, "it says nothing of that");

    let table = "src,dst,mbps\ngcp:us-west1,gcp:us-east4,5\n";
    let twice = format!("rate_tables = [\"t\"]\n{}", text("rate = \"10 Mbit/s\"\n"));
    let refused = read_with(&twice, &[("t", table)]).unwrap_err().to_string();
    assert!(refused.starts_with("line 13: pair: rate: a second one from"), "{refused}");
}

#[test]
fn missing_round_trips_are_guessed_only_when_allowed() {
    let text = SMALL.replacen("rtt = \"200 ms\"", "spread = \"1 ms\"", 1);
    assert!(read(&text).unwrap_err().to_string().contains("spread: it needs an `rtt`"));
    let located = SMALL
        .replace("id = \"a\"\n", "id = \"a\"\nlocation = { latitude = 60.57, longitude = 27.2 }\n")
        .replace(
            "id = \"b\"\n",
            "id = \"b\"\nlocation = { latitude = 35.68, longitude = 139.69 }\n",
        )
        .replace("rtt = \"200 ms\"\n", "");
    let error = read(&located).unwrap_err().to_string();
    assert!(error.contains("or set `assume_rtt_from_distance = true`"), "{error}");
    let read = read(&format!("assume_rtt_from_distance = true\n{located}")).unwrap();
    assert_eq!(read.legs_by_distance(), 1);
    assert!(leg(&read, site("a"), site("b")).rtt > Duration::from_millis(100));
}

#[test]
fn real_world_tables_are_parsed() {
    let text = SMALL.replacen("budget_usd = 2.0", "rtt_tables = [\"t\"]\nrate_tables = [\"r\"]", 1);
    let text = text.split("[[pair]]").next().unwrap();
    let london = || relay("gcp:europe-west2");
    let legs = |rtts: &str, rates: &str| {
        let read = read_with(text, &[("t", rtts), ("r", rates)]).unwrap();
        let rtt = |from, to| leg(&read, from, to).rtt.as_micros();
        let cap = leg(&read, site("a"), london()).cap.map(|cap| cap.as_mbps());
        (rtt(site("a"), site("b")), rtt(site("a"), london()), rtt(london(), site("b")), cap)
    };
    let plain = "src,dst,rtt_ms\na,b,200\na,gcp:europe-west2,60.5\nb,gcp:europe-west2,140\n";
    let rates = "src,dst,mbps\na,gcp:europe-west2,250\n";
    let expected = (200_000, 60_500, 140_000, Some(250.0));
    assert_eq!(legs(plain, rates), expected);
    let quoted = "\"src\",\"dst\",\"rtt_ms\"\r\n\"a\",\"b\",\"200\"\r\n\
     a,\"gcp:europe-west2\",60.5\r\nb,gcp:europe-west2,140\r\n";
    assert_eq!(legs(quoted, rates), expected);
    let matrix = ",a,b,gcp:europe-west2\na,0,200,60.5\nb,,0,140\n";
    assert_eq!(legs(matrix, "src,gcp:europe-west2\na,250\n"), expected);
    // Columns of public grids, with places that the problem does not have.
    let grid = "src,dst,min_rtt_ms\na,b,200\na,gcp:europe-west2,60.5\nb,gcp:europe-west2,140\n\
     aws:here,moon,3\n";
    assert_eq!(legs(grid, "src,dst,gbps\na,gcp:europe-west2,0.25\n"), expected);
    let read = read_with(text, &[("t", grid), ("r", rates)]).unwrap();
    let [note] = &read.notes[..] else { panic!("{:?}", read.notes) };
    assert!(note.starts_with("t: 1 of 4 rows are about places"), "{note}");
    // A place with itself, as on the diagonal of a matrix.
    let itself = "gcp:europe-west2,gcp:europe-west2,0\n";
    assert_eq!(legs(&format!("{plain}{itself}"), &format!("{rates}{itself}")), expected);
    let error = read_with(text, &[("t", &plain.replace("west2,60", "wset2,60")), ("r", rates)]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no round-trip time from site a to relay gcp:europe-west2"), "{error}");
    assert!(error.ends_with("did you mean `gcp:europe-west2`?))"), "{error}");

    let priced = format!("{text}[egress]\ntables = [\"p\"]\n");
    let prices = "src,dst,usd_per_gb\ngcp:europe-west2,gcp:us-east4,0.07\nmoon:a,moon:b,1\n";
    let read = read_with(&priced, &[("t", plain), ("r", rates), ("p", prices)]).unwrap();
    let london: RegionId = "gcp:europe-west2".parse().unwrap();
    let there: RegionId = "gcp:us-east4".parse().unwrap();
    let price = read.inputs.prices.egress(&london, tradewind_model::Egress::Region(&there));
    assert!((price.unwrap().as_usd_per_gb() - 0.07).abs() < 1e-12);
    assert_eq!(read.notes.len(), 1, "{:?}", read.notes);
}

#[test]
fn public_grids_are_parsed() {
    let text = SMALL.replacen(
        "budget_usd = 2.0",
        "rtt_tables = [\"t\"]\nrate_tables = [\"r\"]\negress.tables = [\"p\"]",
        1,
    );
    let text = text.replace("gcp:europe-west2\"]", "gcp:europe-west2\", \"gcp:us-east4\"]");
    let across = |site: &str| {
        format!("\n[[pair]]\nbetween = [\"{site}\", \"gcp:us-east4\"]\nrtt = \"90 ms\"")
    };
    let rtt = format!("rtt = \"200 ms\"{}{}", across("a"), across("b"));
    let text = text.replacen("rtt = \"200 ms\"", &rtt, 1);
    let rtts = "src_region,src_tier,src_instance_class,dst_region,dst_tier,min_rtt,avg_rtt\n\
                gcp:europe-west2-a,PREMIUM,n2,gcp:us-east4-a,PREMIUM,76.5,77\n\
                gcp:europe-west2-a,PREMIUM,n2,gcp:us-east4-a,STANDARD,90,91\n\
                gcp:us-east4-a,PREMIUM,n2,gcp:europe-west2-a,PREMIUM,,\n\
                aws:us-east-1a,PREMIUM,m5,gcp:us-east4-a,PREMIUM,2,3\n";
    let rates = "src_region,dst_region,tag,throughput_sent,success\n\
                 gcp:europe-west2-a,gcp:us-east4-a,x,1250000000.5,True\n";
    let prices = "src,dest,src_tier,dest_tier,cost\n\
                  gcp:europe-west2-a,gcp:us-east4-a,PREMIUM,PREMIUM,0.07\n";
    let read = read_with(&text, &[("t", rtts), ("r", rates), ("p", prices)]).unwrap();
    let (london, ashburn) = (relay("gcp:europe-west2"), relay("gcp:us-east4"));
    let across = leg(&read, london, ashburn);
    assert_eq!(across.rtt.as_micros(), 76_500);
    assert_eq!(across.cap.map(|cap| cap.as_mbps().round()), Some(1250.0));
    let regions = &read.inputs.regions;
    let price =
        read.inputs.prices.egress(&regions[0], tradewind_model::Egress::Region(&regions[1]));
    assert!((price.unwrap().as_usd_per_gb() - 0.07).abs() < 1e-12);
    let notes = read.notes.join("\n");
    for expected in [
        "t: left out: columns `src_instance_class`, `avg_rtt`; 1 row of another tier than premium; \
         1 row without a value",
        "r: left out: columns `tag`, `success`",
    ] {
        assert!(notes.contains(expected), "{expected}: {notes}");
    }
    assert!(!notes.contains("p: "), "{notes}");
}

#[test]
fn inexact_times_are_reported() {
    let slow = SMALL.replacen("rtt = \"200 ms\"", "rtt = \"200 ms\"\nrate = \"1 bit/s\"", 1);
    let beyond = |text: &str| {
        let problem = Problem::new(read(text).unwrap().inputs).unwrap();
        problem.beyond_longest().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(beyond(&slow), ["a-b"], "2 GB at a bit a second take five hundred years");
    assert!(beyond(SMALL).is_empty());
}
