// Package release makes what a release of gpumem consists of, without Docker and without
// the network: binaries for each platform, images for both architectures in OCI's layout,
// the chart's package, a list of what is in each binary and image (SBOM), the licences of
// that, a manifest for krew, the notes, a list of the images by digest, and checksums of all.
//
// The same sources and compilers give the same bytes: paths are trimmed, archives have no
// times of their own, and everything is sorted. The folder's Dockerfile has the compilers
// of those releases that are published.
package release
