// Package stack puts gpumem, as it stands in this checkout or stood at a release, on a test cluster:
// it builds the binaries and their images, loads them onto the nodes and
// installs the chart with Helm, as a user would.
//
// Beside that it has what programs and tests on such a cluster share: a log with
// times, containers of the sample image, and the keeping of logs.
//
// The device plugin is the unmodified binary. What it finds on a node is the
// simulated driver library that package fakenvml describes.
package stack
