//! The `lab` command.
fn main() {
    println!("{:?}", lab::doctor());
}
