// Package template estimates the inventory of nodes that an autoscaler could add. The autoscaler builds
// such nodes from a template. Only their allocatable resources and the labels of NVIDIA's GPU feature
// discovery are known.
package template
