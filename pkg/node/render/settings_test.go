package render

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A second name takes precedence over gpumem's value.
func TestResolveNames(t *testing.T) {
	const jax, torch, fraction = "XLA_PYTHON_CLIENT_MEM_FRACTION", "PYTORCH_ALLOC_CONF", "per_process_memory_fraction:0.2000"
	const jaxToo, torchToo = "XLA_CLIENT_MEM_FRACTION", "PYTORCH_CUDA_ALLOC_CONF"
	for name, tc := range map[string]struct{ env, seconds, want map[string]string }{
		"none":                       {map[string]string{jax: "0.2", torch: fraction}, nil, nil},
		"JAX":                        {map[string]string{jax: "0.2"}, map[string]string{jaxToo: "0.95"}, map[string]string{jax: ""}},
		"JAX, set to nothing":        {map[string]string{jax: "0.2"}, map[string]string{jaxToo: ""}, nil},
		"JAX, by a reference":        {map[string]string{jax: "0.2"}, map[string]string{jaxToo: UnknownValue}, map[string]string{jax: ""}},
		"PyTorch":                    {map[string]string{torch: fraction}, map[string]string{torchToo: "backend:native"}, map[string]string{torch: "backend:native," + fraction}},
		"PyTorch, joined before":     {map[string]string{torch: "backend:native," + fraction}, map[string]string{torchToo: "backend:native"}, nil},
		"PyTorch, its own fraction":  {map[string]string{torch: fraction}, map[string]string{torchToo: "per_process_memory_fraction:0.5"}, map[string]string{torch: "per_process_memory_fraction:0.5"}},
		"PyTorch, the same twice":    {map[string]string{torch: fraction}, map[string]string{torchToo: fraction}, nil},
		"PyTorch, by a reference":    {map[string]string{torch: fraction}, map[string]string{torchToo: UnknownValue}, map[string]string{torch: ""}},
		"frameworkEnv without these": {nil, map[string]string{jaxToo: "0.95", torchToo: "backend:native"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := ResolveNames(tc.env, tc.seconds)
			if len(got) == 0 {
				got = nil
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
