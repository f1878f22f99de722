package fit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// asAnnotated lets the flags have the names of the resources and annotations that say the
// same, too.
func asAnnotated(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "gpu-mem", "gpu-count", "gpu-model":
		name = strings.TrimPrefix(name, "gpu-")
	case "gpu-core":
		name = "cores"
	}
	return pflag.NormalizedName(name)
}

// mib reads the amount: a bare number is GiB.
func (w wish) mib() (int64, error) {
	q, err := resource.ParseQuantity(w.memory)
	if _, number := strconv.ParseFloat(w.memory, 64); number == nil {
		q, err = resource.ParseQuantity(w.memory + "Gi")
	}
	if err != nil || q.Sign() <= 0 {
		return 0, fmt.Errorf("--mem is %q, want GiB (10) or an amount with a unit (512Mi)", w.memory)
	}
	const mib = 1 << 20
	return (q.Value()-1)/mib + 1, nil
}

// request is what the pod asks for where a unit has so many MiB: what a pod with
// these limits and annotations does.
func (w wish) request(names api.Names, unitMiB int64) (placement.Request, error) {
	mib, err := w.mib()
	if err != nil {
		return placement.Request{}, err
	}
	count := int64(max(1, w.count))
	each := (mib-1)/(unitMiB*count) + 1 // units on each GPU
	limits := v1.ResourceList{names.GPUMem(): *resource.NewQuantity(each*count, resource.DecimalSI)}
	if w.cores != 0 {
		limits[names.GPUCore()] = *resource.NewQuantity(int64(w.cores), resource.DecimalSI)
	}
	annotations := map[string]string{names.Count(): strconv.Itoa(w.count)}
	for key, value := range map[string]string{names.Model(): w.model, names.Policy(): w.policy} {
		if value != "" {
			annotations[key] = value
		}
	}
	return names.Request(&v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: annotations},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Limits: limits}}}},
	})
}

// spelling says what a pod has to write for what it asks for here; nothing where that
// is the amount as it was given.
func (w wish) spelling(name v1.ResourceName, req placement.Request, unitMiB int64) string {
	amount := strconv.FormatInt(int64(req.Units()), 10)
	if amount == w.memory {
		return ""
	}
	return fmt.Sprintf("note: a pod asks for it as %s: %s, a whole number of units of %s", name, amount, gpu.Format(1, unitMiB))
}
