"""One module per family of primitives; importing this package registers all rules.

The registry finds a rule by its primitive, so nothing else imports these modules.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
