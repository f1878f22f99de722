package cmdutil

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// Formats that commands implement. The printers of kubectl implement the other output formats.
const (
	Wide          = "wide"
	Name          = "name"
	CustomColumns = "custom-columns"
)

// Output is the flag --output of a command, with kubectl's formats.
type Output struct {
	Format string

	formatNames []string // formats that the command implements
	flags       *genericclioptions.PrintFlags
}

// Add adds the flags --output and --template. Parameter unset describes the default format in the help, and
// formatNames lists the formats that the command implements.
func (o *Output) Add(cmd *cobra.Command, unset string, formatNames ...string) {
	o.formatNames = formatNames
	o.flags = genericclioptions.NewPrintFlags("")
	o.flags.NamePrintFlags = nil // the output is not an API object
	o.flags.OutputFormat = &o.Format
	o.flags.OutputFlagSpecified = func() bool { return cmd.Flags().Changed("output") }
	cmd.Flags().StringVarP(&o.Format, "output", "o", "", "Output format: "+strings.Join(o.formats(), ", ")+"; "+unset+" unless set")
	o.flags.TemplatePrinterFlags.AddFlags(cmd)
	if template := cmd.Flags().Lookup("template"); template != nil {
		template.Usage = "Template, or path of a template file, for -o go-template or jsonpath"
	}
	// These calls fail only if the flag does not exist, which a test would detect.
	_ = cmd.Flags().MarkHidden("allow-missing-template-keys")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(o.formats(), cobra.ShellCompDirectiveNoFileComp))
}

func (o *Output) formats() []string {
	out := slices.Clone(o.formatNames)
	if i := slices.Index(out, CustomColumns); i >= 0 {
		out[i] += "="
	}
	return append(out, "json", "yaml", "jsonpath=", "jsonpath-file=", "go-template=", "go-template-file=")
}

// Columns returns the specification of custom columns; empty in other formats.
func (o *Output) Columns() string {
	_, spec, _ := strings.Cut(o.Format, CustomColumns+"=")
	return spec
}

// ForPrograms reports whether Print implements the format.
func (o *Output) ForPrograms() bool {
	format, _, _ := strings.Cut(o.Format, "=")
	return o.flags != nil && !slices.Contains(o.formatNames, format) && (format != "" || *o.flags.TemplatePrinterFlags.TemplateArgument != "")
}

// Check returns an error if the format is invalid.
func (o *Output) Check() error {
	format, spec, _ := strings.Cut(o.Format, "=")
	switch {
	case format == CustomColumns && slices.Contains(o.formatNames, format) && spec == "":
		return fmt.Errorf("--output %s names no columns: want %s=HEADER:.field", CustomColumns, CustomColumns)
	case !o.ForPrograms():
		return nil
	}
	_, err := o.flags.ToPrinter()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		return fmt.Errorf("--output is %q, want one of %s", o.Format, strings.Join(o.formats(), ", "))
	}
	return err
}

// Print prints a value that has an apiVersion and a kind, in JSON, YAML or a template.
func (o *Output) Print(w io.Writer, v any) error {
	printer, err := o.flags.ToPrinter()
	if err != nil {
		return err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	content := make(map[string]any)
	if err := utiljson.Unmarshal(text, &content); err != nil {
		return err
	}
	return printer.PrintObj(object{&unstructured.Unstructured{Object: content}, text}, w)
}

// object passes a value to kubectl's printers, which expect an API object. Its JSON form preserves the order
// of the value's fields.
type object struct {
	*unstructured.Unstructured
	text []byte
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) { return o.text, nil }

// DeepCopyObject returns the object itself, because printers do not change it.
func (o object) DeepCopyObject() runtime.Object { return o }
