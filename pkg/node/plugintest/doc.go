// Package plugintest provides fakes for tests of the device plugin: two GPUs, the API server's pods, the
// kubelet, events and metrics. It is not part of the product.
//
// Node calls a plugin over gRPC in memory, as the kubelet does. This package does not import the plugin's
// packages, so that their internal tests can use it.
package plugintest
