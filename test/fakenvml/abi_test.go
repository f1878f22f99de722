//go:build cgo

package fakenvml

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
)

// goTypes are go-nvml's types for the structs that nvml_abi.h declares.
var goTypes = map[string]reflect.Type{
	"nvmlPciInfo_t":                  reflect.TypeFor[nvml.PciInfo](),
	"nvmlPciInfoExt_v1_t":            reflect.TypeFor[nvml.PciInfoExt_v1](),
	"nvmlMemory_t":                   reflect.TypeFor[nvml.Memory](),
	"nvmlMemory_v2_t":                reflect.TypeFor[nvml.Memory_v2](),
	"nvmlBAR1Memory_t":               reflect.TypeFor[nvml.BAR1Memory](),
	"nvmlDeviceAttributes_t":         reflect.TypeFor[nvml.DeviceAttributes](),
	"nvmlProcessInfo_v1_t":           reflect.TypeFor[nvml.ProcessInfo_v1](),
	"nvmlProcessInfo_v2_t":           reflect.TypeFor[nvml.ProcessInfo_v2](),
	"nvmlProcessInfo_t":              reflect.TypeFor[nvml.ProcessInfo](),
	"nvmlProcessUtilizationSample_t": reflect.TypeFor[nvml.ProcessUtilizationSample](),
	"nvmlUtilization_t":              reflect.TypeFor[nvml.Utilization](),
	"nvmlTemperature_v1_t":           reflect.TypeFor[nvml.Temperature_v1](),
	"nvmlSetMemoryLimits_v1_t":       reflect.TypeFor[nvml.SetMemoryLimits_v1](),
	"nvmlGetMemoryLimits_v1_t":       reflect.TypeFor[nvml.GetMemoryLimits_v1](),
}

// TestPrototypes compiles the sources against NVIDIA's declarations.
func TestPrototypes(t *testing.T) {
	t.Parallel()
	define := fmt.Sprintf("-DFAKENVML_NVML_HEADER=%q", nvmlHeader(t))
	files, err := filepath.Glob("src/*.c")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if filepath.Base(f) == "stubs.c" {
			continue // a stub has no parameters, on purpose
		}
		if out, err := exec.Command("gcc", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", define, f).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", f, err, out)
		}
	}
}

// TestLayout compares constants, sizes and offsets with NVIDIA's header and with go-nvml's Go types.
func TestLayout(t *testing.T) {
	t.Parallel()
	header, err := os.ReadFile("src/nvml_abi.h")
	if err != nil {
		t.Fatal(err)
	}
	constants := regexp.MustCompile(`\b(NVML_[A-Z0-9_]+|nvmlEventType\w+)\b`).FindAllString(string(header), -1)
	slices.Sort(constants)
	constants = slices.Compact(constants)
	constants = slices.DeleteFunc(constants, func(name string) bool {
		return name == "NVML_STRUCT_VERSION" || name == "NVML_NO_UNVERSIONED_FUNC_DEFS"
	})
	if len(constants) < 80 {
		t.Fatalf("found only %d constants", len(constants))
	}

	var program, want strings.Builder
	fmt.Fprint(&program, "#include <stddef.h>\n#include <stdio.h>\n#include \"nvml_abi.h\"\nint main(void){\n")
	for name, goType := range goTypes {
		fmt.Fprintf(&program, "printf(\"%s %%zu\\n\", sizeof(%s));\n", name, name)
		fmt.Fprintf(&want, "%s %d\n", name, goType.Size())
		for field := range goType.Fields() {
			if field.Name == "_" || strings.HasPrefix(field.Name, "Pad_cgo") {
				continue
			}
			cName := strings.ToLower(field.Name[:1]) + field.Name[1:]
			fmt.Fprintf(&program, "printf(\"%s.%s %%zu\\n\", offsetof(%s, %s));\n", name, cName, name, cName)
			fmt.Fprintf(&want, "%s.%s %d\n", name, cName, field.Offset)
		}
	}
	program.WriteString(`puts("--");` + "\n")
	program.WriteString(`printf("%zu %zu\n", sizeof(nvmlDevice_t), sizeof(nvmlEventSet_t));` + "\n")
	program.WriteString(`printf("%zu\n", sizeof(nvmlEventData_t));` + "\n") // go-nvml does not export this type
	for _, field := range []string{"device", "eventType", "eventData", "gpuInstanceId", "computeInstanceId"} {
		fmt.Fprintf(&program, "printf(\"%s %%zu\\n\", offsetof(nvmlEventData_t, %s));\n", field, field)
	}
	program.WriteString(`printf("%x %x\n", NVML_STRUCT_VERSION(Memory, 2), NVML_STRUCT_VERSION(PciInfoExt, 1));` + "\n")
	for _, name := range constants {
		fmt.Fprintf(&program, "printf(\"%s %%lld\\n\", (long long)%s);\n", name, name)
	}
	fmt.Fprintln(&program, "}")

	dir := t.TempDir()
	source := filepath.Join(dir, "layout.c")
	if err := os.WriteFile(source, []byte(program.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	layout := func(args ...string) string {
		binary := filepath.Join(dir, "layout")
		args = append(args, "-Isrc", "-o", binary, source)
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
		out, err := exec.Command(binary).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	ours := layout()
	theirs := layout(fmt.Sprintf("-DFAKENVML_NVML_HEADER=%q", nvmlHeader(t)))
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("layout differs from NVIDIA's header (-theirs +ours):\n%s", diff)
	}
	structs, _, _ := strings.Cut(ours, "--\n")
	if diff := cmp.Diff(want.String(), structs); diff != "" {
		t.Errorf("layout differs from go-nvml's types (-want +got):\n%s", diff)
	}
}
