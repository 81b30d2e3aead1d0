//! A line chart as self-contained SVG, alone or in a page.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::html::escape as escaped;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// The distance between two rows of the legend.
const LEGEND_ROW: f64 = 16.0;
/// Colours that colour-blind readers can distinguish (Okabe and Ito).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444"];

/// The scale of a chart's horizontal axis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Equal differences have equal lengths.
    #[default]
    Linear,
    /// Equal ratios have equal lengths; for values above zero.
    Log,
    /// Categories 0, 1, 2, ... with names; points are not joined.
    Names,
}

/// Lines over one pair of axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The title above the chart.
    pub title: String,
    /// The label of the horizontal axis.
    pub x_label: String,
    /// The label of the vertical axis.
    pub y_label: String,
    /// The scale of the horizontal axis.
    pub scale: Scale,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A name and its points, from left to right.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Line {
    /// The name in the legend.
    pub name: String,
    /// The points.
    pub points: Vec<Point>,
}

/// One point of a line.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Point {
    /// The horizontal value.
    pub x: f64,
    /// The vertical value.
    pub y: f64,
    /// The interval around `y`, if any.
    pub interval: Option<(f64, f64)>,
    /// The name of `x`, for [`Scale::Names`].
    pub name: String,
}

impl From<(f64, f64)> for Point {
    fn from((x, y): (f64, f64)) -> Self {
        Self { x, y, ..Self::default() }
    }
}

impl Chart {
    /// Returns the chart as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        svg(std::slice::from_ref(self))
    }

    fn draw(&self, svg: &mut String, top: f64) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x = match self.scale {
            Scale::Linear => Axis::linear(points().map(|point| point.x), LEFT, WIDTH - RIGHT),
            Scale::Log => Axis::log(points().map(|point| point.x), LEFT, WIDTH - RIGHT),
            Scale::Names => {
                let most = points().map(|point| point.x).fold(0.0, f64::max);
                Axis { least: -0.5, most: most + 0.5, from: LEFT, to: WIDTH - RIGHT, log: false }
            }
        };
        let ends = points().flat_map(|point| point.interval.map_or([point.y; 2], |(a, b)| [a, b]));
        let y = Axis::linear(ends.chain([0.0]), HEIGHT - BOTTOM, self.top());
        let _ = writeln!(svg, "<g transform=\"translate(0 {top})\">");
        let heavy = " font-size=\"15\" font-weight=\"bold\"";
        text(svg, (LEFT, 24.0), "start", &self.title, heavy);
        self.axes(svg, &x, &y);
        for index in 0..self.lines.len() {
            self.line(svg, index, &x, &y);
        }
        self.legend(svg);
        svg.push_str("</g>\n");
    }

    fn line(&self, svg: &mut String, index: usize, x: &Axis, y: &Axis) {
        let (line, colour) = (&self.lines[index], COLOURS[index % COLOURS.len()]);
        // All lines have points at the same categories: an offset keeps them from hiding each
        // other.
        let beside = if self.scale == Scale::Names {
            (index as f64 - (self.lines.len() - 1) as f64 / 2.0) * 9.0
        } else {
            let place = |point: &Point| format!("{:.1},{:.1}", x.place(point.x), y.place(point.y));
            let path: Vec<String> = line.points.iter().map(place).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                path.join(" ")
            );
            0.0
        };
        for point in &line.points {
            let (cx, cy) = (x.place(point.x) + beside, y.place(point.y));
            if let Some((low, high)) = point.interval {
                let (low, high) = (y.place(low), y.place(high));
                let _ = writeln!(
                    svg,
                    "<path d=\"M{cx:.1} {low:.1}V{high:.1}\" stroke=\"{colour}\" opacity=\"0.6\"/>"
                );
            }
            let at = if point.name.is_empty() { number(point.x) } else { escaped(&point.name) };
            let _ = writeln!(
                svg,
                "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\" fill=\"{colour}\">\
                 <title>{}: {at}, {:.4}</title></circle>",
                escaped(&line.name),
                point.y
            );
        }
    }

    /// Returns the position of each line's name in the legend, and its row: right-aligned if all
    /// fit in one.
    fn legend_places(&self) -> Vec<(f64, usize)> {
        let width = |line: &Line| 34.0 + 7.0 * line.name.chars().count() as f64;
        let all: f64 = self.lines.iter().map(width).sum();
        let (mut left, mut row) = ((WIDTH - RIGHT - all).max(LEFT), 0);
        let mut places = Vec::new();
        for line in &self.lines {
            if left > LEFT && left + width(line) > WIDTH - RIGHT + 0.5 {
                (left, row) = (LEFT, row + 1);
            }
            places.push((left, row));
            left += width(line);
        }
        places
    }

    /// Returns the top of the plot, below the legend.
    fn top(&self) -> f64 {
        let rows = self.legend_places().last().map_or(0, |(_, row)| *row);
        TOP + LEGEND_ROW * rows as f64
    }

    fn legend(&self, svg: &mut String) {
        for (index, (line, (left, row))) in self.lines.iter().zip(self.legend_places()).enumerate()
        {
            let (colour, top) = (COLOURS[index % COLOURS.len()], 34.0 + LEGEND_ROW * row as f64);
            let _ = writeln!(
                svg,
                "<rect x=\"{left:.1}\" y=\"{top}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>"
            );
            text(svg, (left + 16.0, top + 10.0), "start", &line.name, "");
        }
    }

    fn axes(&self, svg: &mut String, x: &Axis, y: &Axis) {
        let (top, bottom, right) = (self.top(), HEIGHT - BOTTOM, WIDTH - RIGHT);
        for tick in y.ticks() {
            let at = y.place(tick);
            let _ = writeln!(svg, "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#ddd\"/>");
            text(svg, (LEFT - 8.0, at + 4.0), "end", &number(tick), "");
        }
        for (tick, name) in self.x_ticks(x) {
            let at = x.place(tick);
            let _ = writeln!(svg, "<path d=\"M{at:.1} {bottom}v5\" stroke=\"#222\"/>");
            text(svg, (at, bottom + 20.0), "middle", &name, "");
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {top}V{bottom}H{right}\" fill=\"none\" stroke=\"#222\"/>"
        );
        text(svg, (f64::midpoint(LEFT, right), HEIGHT - 14.0), "middle", &self.x_label, "");
        let turned = format!(" transform=\"rotate(-90 18 {0})\"", f64::midpoint(top, bottom));
        text(svg, (18.0, f64::midpoint(top, bottom)), "middle", &self.y_label, &turned);
    }

    fn x_ticks(&self, axis: &Axis) -> Vec<(f64, String)> {
        if self.scale != Scale::Names {
            return axis.ticks().into_iter().map(|tick| (tick, number(tick))).collect();
        }
        let mut names: Vec<(f64, String)> = Vec::new();
        for point in self.lines.iter().flat_map(|line| &line.points) {
            if names.iter().all(|(x, _)| *x != point.x) {
                names.push((point.x, point.name.clone()));
            }
        }
        names
    }
}

/// Draws charts one below the other.
#[must_use]
pub fn svg(charts: &[Chart]) -> String {
    let height = HEIGHT * charts.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for (index, chart) in charts.iter().enumerate() {
        chart.draw(&mut svg, HEIGHT * index as f64);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns a page with nothing but the chart.
#[must_use]
pub fn page(chart: &Chart) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{}</title>\n\
         <style>body{{margin:2em auto;max-width:60em}}svg{{width:100%}}</style>\n{}</html>\n",
        escaped(&chart.title),
        chart.svg()
    )
}

/// A mapping from values to positions.
struct Axis {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
    /// `true` for a logarithmic axis, on which `least` and `most` are logarithms.
    log: bool,
}

impl Axis {
    fn linear(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (least, most) = range(values);
        let (least, most) = if least < most { (least, most) } else { (0.0, most.max(1.0)) };
        let step = step(most - least);
        let (least, most) = ((least / step).floor() * step, (most / step).ceil() * step);
        Self { least, most, from, to, log: false }
    }

    fn log(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (least, most) = range(values.filter(|value| *value > 0.0).map(f64::log10));
        let (least, most) = if least <= most { (least, most) } else { (0.0, 1.0) };
        let least = least.floor();
        Self { least, most: most.ceil().max(least + 1.0), from, to, log: true }
    }

    fn place(&self, value: f64) -> f64 {
        let value = if self.log { value.log10().max(self.least) } else { value };
        self.from + (value - self.least) / (self.most - self.least) * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        let step = if self.log { 1.0 } else { step(self.most - self.least) };
        let count = ((self.most - self.least) / step).round() as u32;
        let tick = |tick| self.least + f64::from(tick) * step;
        let value = |at: f64| if self.log { 10_f64.powf(at) } else { at };
        (0..=count).map(|index| value(tick(index))).collect()
    }
}

/// Returns the least and the largest of the values.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
        (least.min(value), most.max(value))
    })
}

/// Returns one, two or five times a power of ten that divides a range into four to ten parts.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_is_valid_for_any_points() {
        for points in [vec![], vec![(1.0, 2.0)], vec![(0.0, 5.0), (3.0, 1.0)], vec![(0.0, 0.0); 2]]
        {
            for scale in [Scale::Linear, Scale::Log, Scale::Names] {
                let points = points.iter().map(|point| Point {
                    interval: Some((point.1 - 1.0, point.1 + 1.0)),
                    name: "<x>".to_owned(),
                    ..Point::from(*point)
                });
                let chart = Chart {
                    title: "a <b> & c".to_owned(),
                    x_label: "x".to_owned(),
                    y_label: "y".to_owned(),
                    scale,
                    lines: vec![Line { name: "plan".to_owned(), points: points.collect() }],
                };
                let svg = chart.svg();
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                assert!(svg.contains("a &lt;b&gt; &amp; c") && svg.ends_with("</svg>\n"));
                assert!(!svg.contains("<x>"));
                assert!(page(&chart).contains(&svg));
            }
        }
    }

    #[test]
    fn long_legend_wraps_above_the_plot() {
        let line = |length: usize| Line { name: "x".repeat(length), points: Vec::new() };
        let of = |lines: Vec<Line>| Chart {
            title: String::new(),
            x_label: String::new(),
            y_label: String::new(),
            scale: Scale::Names,
            lines,
        };
        let short = of(vec![line(10), line(10)]);
        assert_eq!(short.legend_places(), [(532.0, 0), (636.0, 0)]);
        assert_eq!(short.top(), TOP);
        let long = of(vec![line(30), line(40), line(50), line(5)]);
        let rows: Vec<usize> = long.legend_places().iter().map(|(_, row)| *row).collect();
        assert_eq!(rows, [0, 0, 1, 1]);
        assert_eq!(long.top(), TOP + LEGEND_ROW);
        let ends = long.legend_places().into_iter().zip(&long.lines);
        for ((left, _), line) in ends {
            assert!(left + 7.0 * line.name.len() as f64 <= WIDTH, "{left}");
        }
    }

    #[test]
    fn on_a_log_axis_equal_factors_are_equally_long() {
        let axis = Axis::log([1.0, 100.0].into_iter(), 0.0, 200.0);
        assert_eq!([1.0, 10.0, 100.0].map(|value| axis.place(value).round()), [0.0, 100.0, 200.0]);
        assert_eq!(axis.ticks(), [1.0, 10.0, 100.0]);
    }
}
