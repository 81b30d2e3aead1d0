//! A line chart as SVG that needs nothing but itself, alone or in a page.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// Colours that people of all kinds of sight tell apart (Okabe and Ito).
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// Lines over one pair of axes.
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x_label: String,
    pub(crate) y_label: String,
    /// Names and points, from left to right.
    pub(crate) lines: Vec<(String, Vec<(f64, f64)>)>,
}

impl Chart {
    /// The drawing.
    pub(crate) fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let x = Axis::new(points().map(|point| point.0), LEFT, WIDTH - RIGHT);
        let y = Axis::new(points().map(|point| point.1).chain([0.0]), HEIGHT - BOTTOM, TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
        );
        text(
            &mut svg,
            (LEFT, 24.0),
            "start",
            &self.title,
            " font-size=\"15\" font-weight=\"bold\"",
        );
        self.axes(&mut svg, &x, &y);
        for (index, (name, points)) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let place = |(a, b): &(f64, f64)| format!("{:.1},{:.1}", x.place(*a), y.place(*b));
            let path: Vec<String> = points.iter().map(place).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                path.join(" ")
            );
            for (a, b) in points {
                let (cx, cy) = (x.place(*a), y.place(*b));
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\" fill=\"{colour}\"><title>{}: {a:.4}, {b:.4}</title></circle>",
                    escaped(name)
                );
            }
            let at = (WIDTH - RIGHT - 100.0 * (self.lines.len() - index) as f64 + 20.0, 42.0);
            let _ = writeln!(
                svg,
                "<rect x=\"{}\" y=\"34\" width=\"10\" height=\"10\" fill=\"{colour}\"/>",
                at.0 - 16.0
            );
            text(&mut svg, (at.0, 44.0), "start", name, "");
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn axes(&self, svg: &mut String, x: &Axis, y: &Axis) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for tick in y.ticks() {
            let at = y.place(tick);
            let _ = writeln!(svg, "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#ddd\"/>");
            text(svg, (LEFT - 8.0, at + 4.0), "end", &number(tick), "");
        }
        for tick in x.ticks() {
            let at = x.place(tick);
            let _ = writeln!(svg, "<path d=\"M{at:.1} {bottom}v5\" stroke=\"#222\"/>");
            text(svg, (at, bottom + 20.0), "middle", &number(tick), "");
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#222\"/>"
        );
        text(svg, (f64::midpoint(LEFT, right), HEIGHT - 14.0), "middle", &self.x_label, "");
        let turned = format!(" transform=\"rotate(-90 18 {0})\"", f64::midpoint(TOP, bottom));
        text(svg, (18.0, f64::midpoint(TOP, bottom)), "middle", &self.y_label, &turned);
    }
}

/// A page with nothing but the chart.
pub(crate) fn page(chart: &Chart) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{}</title>\n\
         <style>body{{margin:2em auto;max-width:60em}}svg{{width:100%}}</style>\n{}</html>\n",
        escaped(&chart.title),
        chart.svg()
    )
}

/// From values to places on the paper.
struct Axis {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (least, most) = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
                (least.min(value), most.max(value))
            });
        let (least, most) = if least < most { (least, most) } else { (0.0, most.max(1.0)) };
        let step = step(most - least);
        Self { least: (least / step).floor() * step, most: (most / step).ceil() * step, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        self.from + (value - self.least) / (self.most - self.least) * (self.to - self.from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> + use<> {
        let (least, step) = (self.least, step(self.most - self.least));
        let count = ((self.most - self.least) / step).round() as u32;
        (0..=count).map(move |tick| least + f64::from(tick) * step)
    }
}

/// One, two or five times a power of ten that divides a range into four to ten parts.
fn step(range: f64) -> f64 {
    let power = 10_f64.powf((range / 5.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| range / s <= 8.0).unwrap_or(power)
}

fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, words: &str, more: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\"{more}>{}</text>",
        at.0,
        at.1,
        escaped(words)
    );
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_whole_whatever_its_points() {
        for points in [vec![], vec![(1.0, 2.0)], vec![(0.0, 5.0), (3.0, 1.0)], vec![(0.0, 0.0); 2]]
        {
            let chart = Chart {
                title: "a <b> & c".to_owned(),
                x_label: "x".to_owned(),
                y_label: "y".to_owned(),
                lines: vec![("plan".to_owned(), points)],
            };
            let svg = chart.svg();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(svg.contains("a &lt;b&gt; &amp; c") && svg.ends_with("</svg>\n"));
            assert!(page(&chart).contains(&svg));
        }
    }
}
