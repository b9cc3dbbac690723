//! Manual pages and shell completions, from the tree that `--help` prints: `pages DIRECTORY`.

use std::fs;
use std::io;
use std::path::Path;

use clap_complete::{Shell, generate_to};

/// What the pages say besides the commands.
const FILES: &str = "\
.SH FILES
.TP
\\fI/etc/fencefs/NAME.conf\\fR
settings of the service fencefs@NAME
.TP
\\fIMOUNTPOINT/.fencefs/control\\fR
commands and their replies; \\fIstatus\\fR, \\fImetrics\\fR and \\fIrequests\\fR beside it
.SH EXIT STATUS
0 done, 1 failed or refused, 2 a command line that means nothing, 3 the daemon did not answer; fsck also 4, all repaired.
.SH SEE ALSO
mount(8), fstab(5), fuse(4), systemd.mount(5)
";

fn main() -> io::Result<()> {
    let directory = std::env::args().nth(1).ok_or_else(|| io::Error::other("usage: pages DIRECTORY"))?;
    let directory = Path::new(&directory);
    let (manual, completions) = (directory.join("man"), directory.join("completions"));
    fs::create_dir_all(&manual)?;
    fs::create_dir_all(&completions)?;
    let mut tree = fencefs::cli::tree();
    tree.build();
    let commands = tree.clone();
    write_page(&manual, "fencefs", tree.clone(), FILES)?;
    for command in commands.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        // The name is said in three places, and a page is about one command.
        let name = format!("fencefs-{}", command.get_name());
        let invoked: &'static str = Box::leak(format!("fencefs {}", command.get_name()).into_boxed_str());
        let page: &'static str = Box::leak(name.clone().into_boxed_str());
        write_page(&manual, &name, command.clone().name(page).bin_name(invoked).version("0"), "")?;
    }
    let mut seen = fencefs::cli::tree();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut seen, "fencefs", &completions)?;
    }
    Ok(())
}

fn write_page(directory: &Path, name: &str, command: clap::Command, more: &str) -> io::Result<()> {
    let man = clap_mangen::Man::new(command).title(name.to_uppercase()).section("8").manual("fencefs");
    let mut page = Vec::new();
    man.render(&mut page)?;
    page.extend_from_slice(more.as_bytes());
    fs::write(directory.join(format!("{name}.8")), page)
}
