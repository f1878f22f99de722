// Package report shows what was recorded of replays: a summary for a terminal, curves for programs,
// plots, and a page with all of it.
//
// # Invariants
//
//   - Records come by policy, those of one policy one after the other, each with another seed.
//   - The page loads nothing: no script, no picture, no font.
package report
