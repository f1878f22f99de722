// Package template tells what a node would offer that an autoscaler could add: it asks the extender
// about nodes that do not exist yet, made after a template. What is known of such a node are its
// allocatable resources and the labels of NVIDIA's GPU feature discovery.
package template
