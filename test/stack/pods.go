package stack

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpumem/gpumem/test/cluster"
)

// SampleContainer is a container of the sample image, see test/images/sample,
// that asks for units of GPU memory or for none.
func SampleContainer(name string, units int64, args ...string) v1.Container {
	c := v1.Container{Name: name, Image: cluster.SampleImage, ImagePullPolicy: v1.PullNever, Args: args}
	if units > 0 {
		c.Resources.Limits = v1.ResourceList{"gpumem.dev/gpu-mem": *resource.NewQuantity(units, resource.DecimalSI)}
	}
	return c
}
