//! scratch
use std::ffi::OsString;
use std::process::Command;
use tradewind_lab::supervisor::{self, Place, Source};
use tradewind_lab::{Backend, LabOptions, privilege};
use tradewind_wan::Topology;

struct NoAtlas;
impl tradewind_wan::topology::Atlas for NoAtlas {
    fn locate(&self, _: &tradewind_units::RegionId) -> Option<(f64, f64)> {
        None
    }
    fn rtt_between(&self, _: (f64, f64), _: (f64, f64)) -> std::time::Duration {
        std::time::Duration::from_millis(50)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let place = Place::of_this_user();
    match args[1].as_str() {
        "up" => {
            let mut c = Command::new(std::env::current_exe()?);
            c.arg("daemon").arg(place.directory()).arg(&args[2]);
            let s = supervisor::up(&place, c)?;
            for h in s.hosts {
                println!("{} {} {}", h.name, h.ipv4, h.ipv6);
            }
            println!("{:?} {:?}", s.attached_by, s.notes);
        }
        "daemon" => {
            let t = Topology::parse(&std::fs::read_to_string(&args[3])?, &NoAtlas)?;
            let standing = privilege::acquire()?;
            let mut o = LabOptions::default();
            if std::env::var_os("PKT").is_some() {
                o.backend = Backend::PacketSocket;
            }
            if std::env::var_os("SINGLE").is_some() {
                o.passage = tradewind_lab::Passage::Single;
            }
            let r = supervisor::serve(
                &Place::at(&args[2]),
                &t,
                &Source { file: args[3].clone(), standing },
                &o,
            );
            if let Err(e) = r {
                eprintln!("{e}");
                std::process::exit(1)
            }
        }
        "down" => supervisor::down(&place)?,
        "set" => supervisor::set(&place, &args[2], &args[3..])?,
        "status" => {
            let s = supervisor::status(&place)?;
            println!("{}", s.validity);
            for l in s.links {
                println!("{l:?}");
            }
        }
        "exec" => {
            let rest: Vec<OsString> = args[4..].iter().map(Into::into).collect();
            let e = supervisor::exec(&place, &args[2].parse()?, &args[3].clone().into(), &rest);
            eprintln!("{}", e.unwrap_err());
        }
        _ => {}
    }
    Ok(())
}
