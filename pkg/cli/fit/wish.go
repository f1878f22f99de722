package fit

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// normalizeFlag lets users name a flag after the resource or annotation with the same meaning, for example
// --gpu-mem.
func normalizeFlag(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "gpu-mem", "gpu-share", "gpu-count", "gpu-model":
		name = strings.TrimPrefix(name, "gpu-")
	case "gpu-core":
		name = "cores"
	}
	return pflag.NormalizedName(name)
}

// mib returns the amount of --mem in MiB, rounded up. A bare number is GiB.
func (w hypotheticalPod) mib() (int64, error) {
	q, err := resource.ParseQuantity(w.memory)
	if _, number := strconv.ParseFloat(w.memory, 64); number == nil {
		q, err = resource.ParseQuantity(w.memory + "Gi")
	}
	if err != nil || q.Value() < 1 { // Value returns 0 also for amounts that exceed an int64
		return 0, fmt.Errorf("--mem is %q, want GiB (10) or an amount with a unit (512Mi)", w.memory)
	}
	const mib = 1 << 20
	return (q.Value()-1)/mib + 1, nil
}

// resource returns the extended resource that the pod requests.
func (w hypotheticalPod) resource(names api.Names) v1.ResourceName {
	return names.Offered(w.memory == "")
}

// units returns the requested number of shares or of units. A unit has unitMiB MiB, or 1024 if unitMiB
// is 0. Each GPU's part of the memory is rounded up.
func (w hypotheticalPod) units(unitMiB int64) (int64, error) {
	if w.memory == "" {
		if w.shares < 1 {
			return 0, fmt.Errorf("--share is %d, want 1 or more", w.shares)
		}
		return int64(w.shares), nil
	}
	mib, err := w.mib()
	if err != nil {
		return 0, err
	}
	count := int64(max(1, w.count))
	each := (mib-1)/(cmp.Or(unitMiB, 1024)*count) + 1 // on each GPU
	return each * count, nil
}

// request returns the request of a pod that has the flags as limits and annotations, in units of unitMiB MiB.
func (w hypotheticalPod) request(names api.Names, unitMiB int64) (placement.Request, error) {
	units, err := w.units(unitMiB)
	if err != nil {
		return placement.Request{}, err
	}
	limits := v1.ResourceList{w.resource(names): *resource.NewQuantity(units, resource.DecimalSI)}
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

// spelling returns a note with the pod's request in units; empty if --mem has the same number.
func (w hypotheticalPod) spelling(name v1.ResourceName, req placement.Request, unitMiB int64) string {
	amount := strconv.FormatInt(int64(req.Units()), 10)
	if amount == w.memory || req.InShares || unitMiB == 0 {
		return ""
	}
	return fmt.Sprintf("note: request this amount as %s: %s, a whole number of units of %s", name, amount, reasons.Amount(1, unitMiB))
}
