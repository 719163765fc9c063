package picture

// Colour is one of a line, in both schemes.
type Colour struct{ Light, Dark string }

// The lines' colours differ for people who do not tell red from green, and stand out from
// the page in both schemes. They are made after the palette of Okabe and Ito, darker on a
// light page and lighter on a dark one, as labels are written in them.
// https://jfly.uni-koeln.de/color/
var (
	Vermilion = Colour{"#b8410b", "#ff8f5c"}
	Yellow    = Colour{"#8a6100", "#e9b949"}
	Blue      = Colour{"#0b65a8", "#6cb6ff"}
	Green     = Colour{"#00795a", "#3fcf9f"}
	Grey      = Colour{"#59636e", "#9198a1"} // for what others are compared with
)

// The rest of the picture.
var (
	page  = Colour{"#ffffff", "#0d1117"}
	ink   = Colour{"#1f2328", "#e6edf3"}
	muted = Grey
	grid  = Colour{"#e4e8ec", "#262c36"}
)
