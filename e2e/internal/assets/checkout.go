package assets

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
)

// Checkout is the root of this module, of which the working directory is part when it is called first.
var Checkout = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "spot-handler").Output()
	if err != nil {
		return "", fmt.Errorf("find the checkout of spot-handler: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
})
