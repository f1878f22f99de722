// Package plugintest is what surrounds the device plugin, for the tests of its parts: two GPUs,
// the API server's pods, the kubelet, events and metrics. It is not part of the product.
//
// A Node asks a plugin over gRPC, in memory, as the kubelet does. The packages of the plugin are
// not imported here, so that tests inside of each of them can use this.
package plugintest
