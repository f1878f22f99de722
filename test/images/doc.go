// Package images makes container images out of files, with no registry, no
// daemon and no Dockerfile: an archive in OCI's layout, ready for "ctr images import" or
// [cluster.Cluster.LoadImage], for releases one of several architectures.
//
// An image is one layer. The same description and files always give the same
// bytes: entries are sorted, owned by root and dated to the epoch. The layer is
// compressed for releases only: other images travel within one machine.
//
// The programs under this folder are the ones that test clusters run in their
// containers: pause holds a pod's sandbox, sample prints what it was granted, greedy
// takes what the GPUs' driver gives it.
package images
