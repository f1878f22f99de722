// Package podstart measures what gpumem costs a node with a real kubelet: how
// much longer a pod with GPU memory takes to start than one without, how soon
// the device plugin is registered again after a restart of the kubelet, and what
// the device plugin takes where nothing happens.
//
// A pod of a device plugin that decides nothing is measured beside them: what that
// takes longer than a pod without is the kubelet's own part.
//
// Pods come one after the other, on a node where nothing else starts; the sample
// image is there already. A pod has started when the kubelet says that it runs.
// How soon the device plugin is back is read from the
// kubelet's log, from the line with which it makes its device manager, before it
// can be registered with, to the one that says that the device plugin has come.
package podstart
