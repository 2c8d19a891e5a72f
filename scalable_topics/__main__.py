"""`python -m scalable_topics` is `scalable-topics`."""

import sys

from scalable_topics.cli.main import main

sys.exit(main())
