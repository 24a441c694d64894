//! Random lookups of macroscopic cross sections, as Monte Carlo codes for reactors make them.
//!
//! In the manner of XSBench. Source: Tramm, Siegel, Islam and Schulz, *XSBench – The Development and Verification of a
//! Performance Abstraction for Monte Carlo Reactor Analysis* (PHYSOR 2014); the unionized grid is from Leppänen, *Two
//! practical methods for unionized energy grid construction in continuous-energy Monte Carlo neutron transport
//! calculation* (Annals of Nuclear Energy 36, 2009).
//!
//! Each nuclide has a grid of energies with five cross sections at each. The unionized grid has the energies of all
//! nuclides in order, and for each the index of the point below it in the grid of each nuclide. A lookup draws an
//! energy and a material, searches the unionized grid once, and adds up the interpolated cross sections of the
//! material's nuclides by their densities.
//!
//! Deviations from the paper: 1. The energies of a nuclide are one at random in each of equal intervals, so that a
//! point can be computed again without its grid. 2. A lookup depends only on its number, not on the one before. 3. The
//! materials are made up; as there, the first one, the fuel, has most nuclides.

use super::chunks;
use super::outcome::{Answer, Clock, Failure, vector};
use super::parameters::Parameters;
use telpher_os::Random;

/// The sizes, by default those of the paper's small problem: 68 nuclides with 11,303 points, which take 252 MB.
pub(super) const PARAMETERS: &[(&str, u64)] = &[("nuclides", 68), ("points", 11_303), ("lookups", 1_000_000)];

/// The most bytes of the grids. Source: chosen.
const MOST_BYTES: u128 = 64 << 30;
/// Lookups in a chunk of a thread. Source: chosen, some milliseconds.
const CHUNK: usize = 4096;
/// Of so many lookups one is computed a second time, without the grids. Source: chosen, less than a tenth of the time.
const CHECKED: u64 = 64;
/// Kinds of cross section: total, elastic, absorption, fission, and fission by its neutrons.
const KINDS: usize = 5;

/// The materials: how many of a thousand lookups are in each, and how many of a thousand nuclides it has. Source:
/// chosen in the manner of the paper's problem, where the fuel has half of the nuclides and the others have few.
const MATERIALS: [(u64, usize); 6] = [(140, 500), (60, 70), (280, 60), (130, 60), (200, 400), (190, 300)];

/// A point of a nuclide's grid.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Point {
    /// The energy, from 0 to 1.
    energy: f64,
    sections: [f64; KINDS],
}

/// The points as they are defined: each is computed from its number.
#[derive(Clone, Copy, Debug)]
struct Definition {
    nuclides: usize,
    points: usize,
    seed: u64,
}

/// Returns a number from 0 to 1, without 1.
fn unit(random: &mut Random) -> f64 {
    // 53 bits are what a double has.
    (random.next() >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns a generator for one thing of many.
fn generator(seed: u64, kind: u64, number: u64) -> Random {
    let mut random = Random::new(seed ^ (kind << 56));
    Random::new(random.next() ^ number)
}

impl Definition {
    fn energy(&self, nuclide: usize, index: usize) -> (f64, Random) {
        let mut random = generator(self.seed, 1, (nuclide * self.points + index) as u64);
        ((index as f64 + unit(&mut random)) / self.points as f64, random)
    }

    fn point(&self, nuclide: usize, index: usize) -> Point {
        let (energy, mut random) = self.energy(nuclide, index);
        Point { energy, sections: std::array::from_fn(|_| unit(&mut random)) }
    }

    /// Returns the index of the last point that is not above an energy; one that has a point above it.
    fn below(&self, nuclide: usize, energy: f64) -> usize {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "energies are from 0 to 1")]
        let mut index = ((energy * self.points as f64) as usize).min(self.points - 1);
        while index > 0 && self.energy(nuclide, index).0 > energy {
            index -= 1;
        }
        // The product above is rounded.
        while index + 1 < self.points && self.energy(nuclide, index + 1).0 <= energy {
            index += 1;
        }
        index.min(self.points - 2)
    }

    /// Returns both points around an energy.
    fn around(&self, nuclide: usize, energy: f64) -> [Point; 2] {
        let index = self.below(nuclide, energy);
        [self.point(nuclide, index), self.point(nuclide, index + 1)]
    }

    /// Draws a lookup: its energy and material.
    fn draw(&self, lookup: u64) -> (f64, usize) {
        let mut random = generator(self.seed, 2, lookup);
        let energy = unit(&mut random);
        let mut rest = random.below(1000);
        let material = MATERIALS.iter().position(|(share, _)| {
            let is_it = rest < *share;
            rest = rest.saturating_sub(*share);
            is_it
        });
        (energy, material.expect("the shares are a thousand"))
    }

    /// Returns the nuclides of a material: evenly spread, so that materials share some.
    fn nuclides_of(&self, material: usize) -> impl Iterator<Item = usize> {
        let (many, all) = ((self.nuclides * MATERIALS[material].1).div_ceil(1000), self.nuclides);
        (0..many).map(move |number| (material + number * all / many) % all)
    }

    /// Returns the macroscopic cross sections of a lookup, with the points that `around` finds.
    fn macroscopic<E>(
        &self,
        material: usize,
        energy: f64,
        mut around: impl FnMut(usize) -> Result<[Point; 2], E>,
    ) -> Result<[f64; KINDS], E> {
        let mut sums = [0.0; KINDS];
        for nuclide in self.nuclides_of(material) {
            let [low, high] = around(nuclide)?;
            let share = (high.energy - energy) / (high.energy - low.energy);
            // Made up: a density for each nuclide.
            let density = 1.0 / (nuclide + 1) as f64;
            for (kind, sum) in sums.iter_mut().enumerate() {
                *sum += density * (high.sections[kind] - share * (high.sections[kind] - low.sections[kind]));
            }
        }
        Ok(sums)
    }
}

/// The grids in memory.
#[derive(Debug)]
struct Grids {
    definition: Definition,
    /// The points of each nuclide, one nuclide after the other.
    points: Vec<Point>,
    /// The energies of all nuclides, in order.
    energies: Vec<f64>,
    /// For each of them, the index of the point below it in the grid of each nuclide.
    below: Vec<u32>,
}

impl Grids {
    fn new(definition: Definition) -> Result<Grids, Failure> {
        let Definition { nuclides, points: length, .. } = definition;
        let all = nuclides * length;
        let (mut points, mut energies, mut below) = (vector(all)?, vector(all)?, vector(all * nuclides)?);
        for nuclide in 0..nuclides {
            points.extend((0..length).map(|index| definition.point(nuclide, index)));
        }
        let mut order: Vec<(f64, u32)> = vector(all)?;
        // `MOST_BYTES` keeps all numbers of points within 32 bits.
        order.extend(points.iter().zip(0..).map(|(point, number)| (point.energy, number)));
        order.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        let mut now = vec![0; nuclides];
        for group in order.chunk_by(|one, other| one.0 == other.0) {
            for (_, number) in group {
                let (nuclide, index) = (*number as usize / length, *number as usize % length);
                now[nuclide] = u32::try_from(index.min(length - 2)).expect("less than a number of points");
            }
            for (energy, _) in group {
                energies.push(*energy);
                below.extend_from_slice(&now);
            }
        }
        Ok(Grids { definition, points, energies, below })
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.points[..]) + size_of_val(&self.energies[..]) + size_of_val(&self.below[..])
    }

    /// Returns the macroscopic cross sections of a lookup.
    fn look_up(&self, material: usize, energy: f64) -> Result<[f64; KINDS], String> {
        let Definition { nuclides, points: length, .. } = self.definition;
        let place = self.energies.partition_point(|known| *known <= energy).saturating_sub(1);
        let below = &self.below[place * nuclides..][..nuclides];
        self.definition.macroscopic(material, energy, |nuclide| {
            let index = below[nuclide] as usize;
            if index + 1 >= length {
                return Err(format!("nuclide {nuclide} has no point {index} for energy {energy}"));
            }
            let low = nuclide * length + index;
            Ok([self.points[low], self.points[low + 1]])
        })
    }

    /// Executes a lookup, and returns its part of the checksum.
    fn execute(&self, lookup: u64) -> Result<u64, String> {
        let (energy, material) = self.definition.draw(lookup);
        let sums = self.look_up(material, energy)?;
        if lookup.is_multiple_of(CHECKED) {
            let around = |nuclide| Ok::<_, String>(self.definition.around(nuclide, energy));
            let expected = self.definition.macroscopic(material, energy, around)?;
            if sums.map(f64::to_bits) != expected.map(f64::to_bits) {
                return Err(format!("lookup {lookup} has {sums:?} and should have {expected:?}"));
            }
        }
        let mut part = lookup;
        for sum in sums {
            part = Random::new(part ^ sum.to_bits()).next();
        }
        Ok(part)
    }

    /// Compares all grids with their definition.
    ///
    /// # Errors
    /// The first difference.
    fn check(&self, threads: std::num::NonZero<usize>) -> Result<(), String> {
        let Definition { nuclides, points: length, .. } = self.definition;
        let of_points = chunks::sum(threads, self.points.len(), CHUNK, |range| {
            let mut sum = 0u64;
            for number in range {
                let (nuclide, index) = (number / length, number % length);
                let expected = self.definition.point(nuclide, index);
                if self.points[number] != expected {
                    let point = self.points[number];
                    return Err(format!("point {index} of nuclide {nuclide} is {point:?} and should be {expected:?}"));
                }
                sum = sum.wrapping_add(Random::new(expected.energy.to_bits()).next());
            }
            Ok(sum)
        })?;
        // The same energies, in order, each with the points below it.
        let of_energies = chunks::sum(threads, self.energies.len(), CHUNK, |range| {
            let mut sum = 0u64;
            for place in range {
                let energy = self.energies[place];
                if energy.is_nan() || (place > 0 && self.energies[place - 1] > energy) {
                    return Err(format!("energy {place} of all nuclides is less than the one before, or no number"));
                }
                for (nuclide, below) in self.below[place * nuclides..][..nuclides].iter().enumerate() {
                    let expected = self.definition.below(nuclide, energy);
                    if *below as usize != expected {
                        return Err(format!(
                            "energy {place} is above point {expected} of nuclide {nuclide}, and the grid says {below}"
                        ));
                    }
                }
                sum = sum.wrapping_add(Random::new(energy.to_bits()).next());
            }
            Ok(sum)
        })?;
        if of_points == of_energies { Ok(()) } else { Err("the unionized grid has other energies".into()) }
    }
}

/// Sets up the grids, executes the lookups, and checks the grids.
pub(super) fn run(given: &Parameters, clock: &mut Clock) -> Result<Answer, Failure> {
    let size = |key, least, most| given.between(key, least, most).map_err(Failure::Usage);
    let (nuclides, points) = (size("nuclides", 1, 100_000)?, size("points", 2, 100_000_000)?);
    let lookups = size("lookups", 1, 1 << 40)?;
    let threads = given.threads().map_err(Failure::Usage)?;
    let all = nuclides as u128 * points as u128;
    let bytes = all * (size_of::<Point>() as u128 + 24 + 4 * nuclides as u128);
    if bytes > MOST_BYTES || u32::try_from(all).is_err() {
        return Err(Failure::Usage(format!("{nuclides} nuclides with {points} points need too much memory")));
    }
    let mut grids = Grids::new(Definition { nuclides, points, seed: given.get("seed") })?;
    clock.lap();
    let checksum = chunks::sum(threads, lookups, CHUNK, |range| {
        range.map(|lookup| grids.execute(lookup as u64)).try_fold(0u64, |sum, part| Ok(sum.wrapping_add(part?)))
    });
    let checksum = checksum.map_err(Failure::Wrong)?;
    clock.lap();
    if given.get("damage") > 0 {
        let middle = grids.points.len() / 2;
        let section = &mut grids.points[middle].sections[0];
        *section = f64::from_bits(section.to_bits() ^ 1);
    }
    grids.check(threads).map_err(Failure::Wrong)?;
    clock.lap();
    let mib = grids.bytes() >> 20;
    let what = format!(
        "{nuclides} nuclides, {points} points of each, {lookups} lookups, {threads} threads, {mib} MiB of grids"
    );
    Ok(Answer { what, checksum })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZero;

    fn grids() -> Grids {
        Grids::new(Definition { nuclides: 7, points: 50, seed: 3 }).unwrap()
    }

    fn check(grids: &Grids) -> Result<(), String> {
        grids.check(NonZero::new(2).unwrap())
    }

    /// The oracle walks a nuclide's grid from its begin.
    #[test]
    fn the_unionized_grid_and_the_definition_find_the_same_points() {
        let grids = grids();
        let definition = grids.definition;
        let random = &mut Random::new(5);
        let at_points = grids.points.iter().map(|point| point.energy).collect::<Vec<_>>();
        for energy in (0..1000).map(|_| unit(random)).chain(at_points).chain([0.0, 1.0]) {
            for nuclide in 0..definition.nuclides {
                let own = &grids.points[nuclide * 50..][..50];
                let naive = own.iter().filter(|point| point.energy <= energy).count().clamp(1, 49) - 1;
                assert_eq!(definition.below(nuclide, energy), naive, "{energy}");
            }
            for material in 0..MATERIALS.len() {
                let around = |nuclide| Ok::<_, String>(definition.around(nuclide, energy));
                let expected = definition.macroscopic(material, energy, around);
                assert_eq!(grids.look_up(material, energy), expected);
            }
        }
    }

    #[test]
    fn interpolated_sections_lie_between_those_of_the_points() {
        let grids = grids();
        let nuclides = |material| grids.definition.nuclides_of(material).collect::<Vec<_>>();
        for lookup in 0..500 {
            let (energy, material) = grids.definition.draw(lookup);
            // Only between the first and the last point.
            if !(0.02..0.98).contains(&energy) {
                continue;
            }
            let most: f64 = nuclides(material).iter().map(|nuclide| 1.0 / (nuclide + 1) as f64).sum();
            let sums = grids.look_up(material, energy).unwrap();
            assert!(sums.iter().all(|sum| (0.0..most).contains(sum)), "{lookup}: {sums:?}, {most}");
        }
        assert_eq!(MATERIALS.iter().map(|(share, _)| share).sum::<u64>(), 1000);
        assert!((0..MATERIALS.len()).all(|material| !nuclides(material).is_empty()));
    }

    #[test]
    fn every_kind_of_damage_to_the_grids_is_noticed() {
        assert_eq!(check(&grids()), Ok(()));
        let damages: [fn(&mut Grids); 7] = [
            |grids| grids.points[0].energy += 1e-9,
            |grids| grids.points[349].sections[4] = f64::NAN,
            |grids| grids.points.swap(17, 18),
            |grids| grids.energies[100] = grids.energies[101],
            |grids| grids.energies[349] = f64::NAN,
            |grids| grids.below[7 * 200 + 3] ^= 1,
            |grids| grids.below[0] = u32::MAX,
        ];
        for (number, damage) in damages.into_iter().enumerate() {
            let mut grids = grids();
            damage(&mut grids);
            assert!(check(&grids).is_err(), "damage {number}");
        }
    }

    #[test]
    fn lookups_in_a_damaged_grid_are_errors_and_no_panics() {
        let mut grids = grids();
        grids.below.fill(u32::MAX);
        assert!(grids.execute(1).unwrap_err().contains("has no point"));
        let mut grids = self::grids();
        for point in &mut grids.points {
            point.sections[2] += 1e-9;
        }
        assert!(grids.execute(0).unwrap_err().contains("lookup 0 has"));
    }
}
