"""What every test stands on."""

import signal

# A shell starts what runs in the background with SIGINT ignored, and children inherit that; tests of interrupts need it.
signal.signal(signal.SIGINT, signal.default_int_handler)
