// Package release makes what a release of gpumem consists of, without Docker:
// binaries for each platform, images as archives, the chart's package, a list of
// the modules in each binary (SBOM), a manifest for krew, and checksums of all.
//
// The same sources give the same bytes: paths are trimmed, archives have no times
// of their own, and everything is sorted.
package release
