//! `tradewind route`: the paths between two places, ranked by their largest RTT, and whether a
//! relay pays.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use serde::Serialize;
use tradewind_model::cost::Prices;
use tradewind_model::leg::{DEFAULT_WINDOW, Loss};
use tradewind_model::tcp::LossResponse;
use tradewind_model::{Catalogue, Coordinates, RttModel, StartUp};
use tradewind_plan::RelayType;
use tradewind_plan::problem::MAX_RELAYS;
use tradewind_plan::routing::Router;
use tradewind_plan::routing::advice::{Advice, Route, Rule, Settings, Verdict, advise};
use tradewind_plan::routing::table::RttTable;
use tradewind_units::time::as_millis_f64;
use tradewind_units::{Bandwidth, Bytes, Duration, Ratio, RegionId, SiteId};

use crate::output::{self, BadFile, Format, OrBadFile as _, Outcome, read_text, table};
use crate::plan::show::prices;

/// Rank the paths from A to B by their largest round-trip time, and say whether a relay pays
///
/// A and B are regions of the catalogue (`aws:ap-south-1`) or cities as LATITUDE,LONGITUDE
/// (`37.77,-122.42`); with --rtt they are names of that table. Without --rtt all round-trip times
/// are guesses by distance. Relays are tried in the catalogue's regions, or in those names of the
/// table that read CLOUD:REGION.
#[derive(clap::Args)]
pub(crate) struct RouteArgs {
    /// Start of the flow
    #[arg(value_name = "A", allow_hyphen_values = true)]
    from: String,
    /// End of the flow
    #[arg(value_name = "B", allow_hyphen_values = true)]
    to: String,
    /// Volume to be carried
    #[arg(long, default_value = "1 GB")]
    volume: Bytes,
    /// Most relays on a path
    #[arg(
        long,
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(0..=MAX_RELAYS as i64)
    )]
    relays: u8,
    /// Only relays in these clouds, such as `aws,gcp`
    #[arg(long, value_name = "CLOUD", value_delimiter = ',')]
    clouds: Vec<String>,
    /// Measured round-trip times: CSV with the header src,dst,rtt_ms
    #[arg(long, value_name = "FILE")]
    rtt: Option<PathBuf>,
    /// Window of a connection with A or B at an end; by default Linux's, as CloudPilot saw it
    #[arg(long, value_name = "SIZE", default_value_t = DEFAULT_WINDOW)]
    window: Bytes,
    /// Window of a connection between two relays [default: that of --window]
    #[arg(long, value_name = "SIZE")]
    relay_window: Option<Bytes>,
    /// Rate of the access of A and of B
    #[arg(long, default_value = "1 Gbit/s")]
    rate: Bandwidth,
    /// Share of segments lost at random on legs from A and to B, such as `0.1 %`
    #[arg(long, value_name = "RATIO")]
    loss: Option<Ratio>,
    /// Parallel connections on each leg
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Price of egress: 8 cents a GB, or as the clouds list it; a relay's set-up is 50 cents
    #[arg(long, value_enum, default_value = "flat")]
    prices: PriceList,
    /// Number of the ranking's paths to show; the best of each number of relays are always shown
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    show: u16,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

/// The source of prices.
#[derive(Clone, Copy, clap::ValueEnum)]
enum PriceList {
    /// CloudPilot's: 8 cents for each GB that a relay sends
    Flat,
    /// The catalogue's
    Catalogue,
}

/// An end of the flow or a relay's region.
struct RouteEnd {
    /// Coordinates, if the catalogue or the user gave them.
    at: Option<Coordinates>,
    /// Name in a table.
    site: Option<SiteId>,
    /// The region that it is or lies in.
    region: Option<RegionId>,
}

/// The source of round-trip times.
enum Rtts {
    Measured(RttTable),
    Model,
}

impl Rtts {
    fn between(&self, a: &RouteEnd, b: &RouteEnd) -> Option<Duration> {
        match self {
            Self::Measured(table) => table.rtt(a.site.as_ref()?, b.site.as_ref()?),
            Self::Model => Some(RttModel::fitted().rtt_between(a.at?, b.at?)),
        }
    }

    /// Describes the source for people, and for the field `rtt_source`.
    fn described(&self) -> String {
        let error = RttModel::STATED_ERROR;
        match self {
            Self::Measured(_) => "measured, from the table".to_owned(),
            Self::Model => format!(
                "guessed by distance, not measured: half of all pairs are off by up to {:.0} %, \
                 one in ten by more than {:.0} %",
                error.median * 100.0,
                error.p90 * 100.0
            ),
        }
    }
}

pub(crate) fn run(args: &RouteArgs) -> Outcome {
    if args.from == args.to {
        return Err(bad(format!("A and B are the same place, `{}`", args.from)));
    }
    let catalogue = Catalogue::builtin();
    let rtts = match &args.rtt {
        Some(file) => Rtts::Measured(read_table(file)?),
        None => Rtts::Model,
    };
    let (from, to) = (place(&args.from, &rtts, &catalogue)?, place(&args.to, &rtts, &catalogue)?);
    let (relays, regions) = relays(args, &rtts, &catalogue)?;
    let router = Router::new(&from, &to, &relays, |a, b| rtts.between(a, b));
    let settings = settings(args, [from.region, to.region], catalogue)?;
    let advice = advise(&router, &regions, &settings, args.show.into())?;
    if advice.verdict == Verdict::NoPath {
        bail!("no path from `{}` to `{}` has all its round-trip times known", args.from, args.to);
    }
    match args.output {
        Format::Json => {
            let dates = settings.prices.dates(&regions);
            let prices_dated = dates.values().flatten().min().cloned();
            output::json(&Answer { prices_dated, ..Answer::new(args, &rtts, &advice, &regions) })?;
        }
        Format::Table => {
            show(args, &rtts, &advice, &regions)?;
            prices(&settings.prices, &regions)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the error of an invalid argument.
fn bad(problem: String) -> anyhow::Error {
    BadFile(problem).into()
}

fn read_table(file: &Path) -> anyhow::Result<RttTable> {
    RttTable::parse(&read_text(file)?).or_bad(file)
}

fn place(name: &str, rtts: &Rtts, catalogue: &Catalogue) -> anyhow::Result<RouteEnd> {
    let region = RegionId::new(name).ok();
    let region = region.filter(|region| catalogue.region(region).is_some());
    if let Rtts::Measured(table) = rtts {
        let site = SiteId::new(name).ok().filter(|site| table.places().contains(site));
        let site = site.ok_or_else(|| bad(format!("the table has no place `{name}`")))?;
        return Ok(RouteEnd { at: None, site: Some(site), region });
    }
    let at = match &region {
        Some(region) => catalogue.require(region)?.location,
        None => city(name, catalogue)?,
    };
    Ok(RouteEnd { at: Some(at), site: None, region })
}

/// Parses `LATITUDE,LONGITUDE`.
fn city(name: &str, catalogue: &Catalogue) -> anyhow::Result<Coordinates> {
    let degrees = name.split_once(',').and_then(|(latitude, longitude)| {
        Some((latitude.trim().parse().ok()?, longitude.trim().parse().ok()?))
    });
    let expected = || {
        let close = catalogue.did_you_mean(name);
        let what = "a region of the catalogue or LATITUDE,LONGITUDE is expected";
        bad(format!("`{name}`: {what}{close}"))
    };
    let (latitude, longitude) = degrees.ok_or_else(expected)?;
    Coordinates::new(latitude, longitude).map_err(|error| bad(format!("`{name}`: {error}")))
}

/// Returns the possible places of relays, with their names, in the clouds of `args`.
fn relays(
    args: &RouteArgs,
    rtts: &Rtts,
    catalogue: &Catalogue,
) -> anyhow::Result<(Vec<RouteEnd>, Vec<RegionId>)> {
    let all: Vec<RouteEnd> = match rtts {
        Rtts::Model => {
            let place = |region: &tradewind_model::Region| RouteEnd {
                at: Some(region.location),
                site: None,
                region: Some(region.id.clone()),
            };
            catalogue.regions().map(place).collect()
        }
        Rtts::Measured(table) => {
            let clouds = table.places().into_iter().filter(|site| site.as_str().contains(':'));
            let place = |site: &SiteId| {
                let region = Some(RegionId::new(site.as_str())?);
                anyhow::Ok(RouteEnd { at: None, site: Some(site.clone()), region })
            };
            clouds.map(place).collect::<Result<_, _>>()?
        }
    };
    let cloud = |place: &RouteEnd| place.region.as_ref().map(|region| region.cloud().to_owned());
    for asked in &args.clouds {
        if !all.iter().any(|place| cloud(place).as_ref() == Some(asked)) {
            return Err(bad(format!("--clouds: no region of a cloud `{asked}` is known")));
        }
    }
    let wanted = |place: &RouteEnd| {
        args.clouds.is_empty() || cloud(place).is_some_and(|cloud| args.clouds.contains(&cloud))
    };
    let chosen: Vec<RouteEnd> = all.into_iter().filter(wanted).collect();
    let regions = chosen.iter().filter_map(|place| place.region.clone()).collect();
    Ok((chosen, regions))
}

fn settings(
    args: &RouteArgs,
    [source, destination]: [Option<RegionId>; 2],
    catalogue: Catalogue,
) -> anyhow::Result<Settings> {
    if args.volume == Bytes::ZERO {
        return Err(bad("--volume: more than nothing is expected".to_owned()));
    }
    let relay_window = args.relay_window.unwrap_or(args.window);
    for (option, window) in [("--window", args.window), ("--relay-window", relay_window)] {
        if window < tradewind_model::leg::DEFAULT_MSS {
            let problem =
                format!("{option}: at least one segment of 1448 B is expected, not {window}");
            return Err(bad(problem));
        }
    }
    let prices = match args.prices {
        PriceList::Flat => Prices::cloudpilot(),
        PriceList::Catalogue => Prices::Catalogue(Box::new(catalogue)),
    };
    Ok(Settings {
        volume: args.volume,
        most_relays: args.relays.into(),
        window: args.window,
        relay_window,
        last_mile: Some(args.rate),
        loss: args.loss.map(|ratio| Loss { ratio, response: LossResponse::Cubic }),
        connections: args.connections,
        relay_type: RelayType::cloudpilot(),
        prices,
        source,
        destination,
        start_up: StartUp::Cold,
    })
}

/// The JSON output.
#[derive(Serialize)]
struct Answer {
    schema_version: u32,
    from: String,
    to: String,
    volume_bytes: u64,
    rtt_source: String,
    /// The date of the catalogue whose prices were used; left out with flat ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    prices_dated: Option<String>,
    /// `direct` or `relay`.
    verdict: &'static str,
    /// Reasons why direct is best; empty for `relay`.
    reasons: Vec<String>,
    /// The best path.
    path: Vec<RegionId>,
    routes: Vec<AnsweredRoute>,
}

#[derive(Serialize)]
struct AnsweredRoute {
    path: Vec<RegionId>,
    rules: Vec<Rule>,
    rtt_ms: Vec<f64>,
    largest_leg_ms: f64,
    fct_s: f64,
    acceleration: Option<f64>,
    acceleration_over_two_relays_estimated: Option<f64>,
    cost_usd: f64,
    egress_usd: f64,
    set_up_usd: f64,
    /// The slowest leg, from 1; `None` where start-up takes most of the time.
    slowest_leg: Option<usize>,
    bound_by: &'static str,
}

impl Answer {
    fn new(args: &RouteArgs, rtts: &Rtts, advice: &Advice, regions: &[RegionId]) -> Self {
        let (verdict, reasons) = match &advice.verdict {
            Verdict::Direct(reasons) => ("direct", reasons.as_slice()),
            Verdict::Relay(_) | Verdict::NoPath => ("relay", &[][..]),
        };
        let route = |route: &Route| AnsweredRoute {
            path: names(route, regions),
            rules: route.rules.clone(),
            rtt_ms: route.path.rtts.iter().map(|rtt| as_millis_f64(*rtt)).collect(),
            largest_leg_ms: as_millis_f64(route.path.largest_leg()),
            fct_s: route.fct().as_secs_f64(),
            acceleration: route.gain,
            acceleration_over_two_relays_estimated: route.gain_over_two,
            cost_usd: route.cost().as_usd(),
            egress_usd: route.egress.as_usd(),
            set_up_usd: route.set_up.as_usd(),
            slowest_leg: route.slowest_leg.map(|leg| leg + 1),
            bound_by: route.bound_by,
        };
        Self {
            schema_version: 1,
            from: args.from.clone(),
            to: args.to.clone(),
            volume_bytes: args.volume.as_u64(),
            rtt_source: rtts.described(),
            prices_dated: None,
            verdict,
            reasons: reasons.iter().map(ToString::to_string).collect(),
            path: best(advice).map_or_else(Vec::new, |best| names(best, regions)),
            routes: advice.routes.iter().map(route).collect(),
        }
    }
}

/// Returns the relayed route that the verdict names.
fn best(advice: &Advice) -> Option<&Route> {
    match advice.verdict {
        Verdict::Relay(index) => advice.routes.get(index),
        Verdict::Direct(_) | Verdict::NoPath => None,
    }
}

fn names(route: &Route, regions: &[RegionId]) -> Vec<RegionId> {
    route.path.relays.iter().map(|relay| regions[*relay].clone()).collect()
}

/// Returns `direct`, or the relays in order.
fn path_text(route: &Route, regions: &[RegionId]) -> String {
    let names: Vec<String> = names(route, regions).iter().map(ToString::to_string).collect();
    if names.is_empty() { "direct".to_owned() } else { names.join(" > ") }
}

fn show(
    args: &RouteArgs,
    rtts: &Rtts,
    advice: &Advice,
    regions: &[RegionId],
) -> anyhow::Result<()> {
    let binds = |route: &Route| match route.slowest_leg {
        Some(leg) => format!("{}, leg {}/{}", route.bound_by, leg + 1, route.path.rtts.len()),
        None => route.bound_by.to_owned(),
    };
    let factor = |gain: Option<f64>| gain.map_or_else(String::new, |gain| format!("{gain:.2}x"));
    let row = |route: &Route| {
        let rules: Vec<&str> = route.rules.iter().map(|rule| rule_name(*rule)).collect();
        vec![
            path_text(route, regions),
            rules.join(", "),
            binds(route),
            format!("{:.1}", as_millis_f64(route.path.largest_leg())),
            format!("{:.3}", route.fct().as_secs_f64()),
            factor(route.gain),
            factor(route.gain_over_two),
            route.cost().to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = advice.routes.iter().map(row).collect();
    output::line(format_args!("{} from {} to {}", args.volume, args.from, args.to))?;
    output::line(format_args!("round-trip times: {}", rtts.described()))?;
    let heading =
        ["path", "best by", "bound by", "largest leg ms", "fct s", "gain", "est. over 2", "cost"];
    table::print(&heading, &rows, 3)?;
    if let Verdict::Direct(reasons) = &advice.verdict {
        output::line("direct is best:")?;
        for reason in reasons {
            output::line(format_args!("  - {reason}"))?;
        }
    }
    if let Some(route) = best(advice) {
        output::line(format_args!(
            "relay: {} takes {:.3} s{} for {}",
            path_text(route, regions),
            route.fct().as_secs_f64(),
            route.gain.map_or_else(String::new, |gain| format!(", {gain:.2}x faster than direct,")),
            route.cost()
        ))?;
        let margin = 1.0 + RttModel::STATED_ERROR.p90;
        if matches!(rtts, Rtts::Model) && route.gain.is_some_and(|gain| gain < margin) {
            output::line(
                "  that gain is within the error of guessed round-trip times: measure them first",
            )?;
        }
    }
    Ok(())
}

fn rule_name(rule: Rule) -> &'static str {
    match rule {
        Rule::MinMax => "min-max",
        Rule::Cloudified => "cdd",
        Rule::Fastest => "fct",
    }
}
